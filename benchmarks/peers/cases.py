"""The cases: what each library is asked to train, in words all of them have."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

ADAM_EPS = 1e-5
"""Adam's epsilon, wherever a library lets it be set."""


@dataclass(frozen=True)
class Case:
    """One training problem.

    A policy and a value function by PPO with a clipped ratio, unclipped values, advantages
    normalised by minibatch, and a constant learning rate.
    """

    env: str
    """The id in Gymnasium, or in EnvPool."""
    n_envs: int
    n_steps: int
    n_minibatches: int
    n_epochs: int
    total_timesteps: int
    encoder: Literal["mlp", "nature", "impala"] = "mlp"
    """mlp: hidden layers with tanh, a network each for policy and value; the others are shared."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    """The coefficient of 0.5 (v - target)^2."""
    max_grad_norm: float = 0.5
    normalize: bool = False
    """Observations and rewards by their running statistics."""
    n_seeds: int = 1
    warm_up: int = 2
    """Iterations before the warm clock starts."""
    torch_threads: int | None = 1
    """PyTorch's threads for the libraries that leave them alone; None: PyTorch's own choice."""
    repeats: int = 5

    @property
    def rollout_size(self) -> int:
        """Environment steps in one iteration."""
        return self.n_envs * self.n_steps

    @property
    def minibatch_size(self) -> int:
        """Rows in one gradient step."""
        return self.rollout_size // self.n_minibatches

    @property
    def title(self) -> str:
        """The case in one line."""
        network = {"mlp": "MLP " + "-".join(map(str, self.hidden_sizes)) + " twice"}
        words = network.get(self.encoder, f"{self.encoder} CNN shared")
        seeds = f", {self.n_seeds} seeds" if self.n_seeds > 1 else ""
        sizes = f"{self.n_envs}x{self.n_steps}, M {self.n_minibatches}, E {self.n_epochs}"
        return f"{self.env} {sizes}, {words}{seeds}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_json`."""
        fields: dict[str, Any] = data | {"hidden_sizes": tuple(data["hidden_sizes"])}
        return cls(**fields)


CARTPOLE = Case(
    env="CartPole-v1",
    n_envs=8,
    n_steps=128,
    n_minibatches=4,
    n_epochs=4,
    total_timesteps=204_800,
)
PENDULUM = Case(
    env="Pendulum-v1",
    n_envs=1,
    n_steps=2048,
    n_minibatches=32,
    n_epochs=10,
    total_timesteps=204_800,
    gamma=0.9,
    normalize=True,
)
BREAKOUT = Case(
    env="Breakout-v5",
    encoder="nature",
    n_envs=8,
    n_steps=128,
    n_minibatches=4,
    n_epochs=4,
    total_timesteps=20_480,
    learning_rate=2.5e-4,
    clip_range=0.1,
    ent_coef=0.01,
    torch_threads=None,
    repeats=3,
)
STARPILOT = Case(
    env="StarpilotHard-v0",
    encoder="impala",
    n_envs=64,
    n_steps=256,
    n_minibatches=8,
    n_epochs=3,
    total_timesteps=32_768,
    learning_rate=5e-4,
    gamma=0.999,
    ent_coef=0.01,
    warm_up=1,
    torch_threads=None,
    repeats=3,
)
MINIGRID = Case(
    env="MiniGrid-Empty-8x8-v0",
    n_envs=64,
    n_steps=32,
    n_minibatches=8,
    n_epochs=4,
    total_timesteps=102_400,
    ent_coef=0.01,
    normalize=True,
    n_seeds=10,
    repeats=3,
)
LUNARLANDER = Case(
    env="LunarLander-v3",
    n_envs=16,
    n_steps=128,
    n_minibatches=8,
    n_epochs=4,
    total_timesteps=102_400,
    ent_coef=0.01,
    n_seeds=10,
    repeats=3,
)

CASES = {
    "cartpole-8x128": CARTPOLE,
    "cartpole-128x8": replace(CARTPOLE, n_envs=128, n_steps=8),
    "cartpole-4096x32": replace(CARTPOLE, n_envs=4096, n_steps=32, total_timesteps=2_621_440),
    "pendulum-1x2048": PENDULUM,
    "pendulum-64x32": replace(PENDULUM, n_envs=64, n_steps=32),
    "breakout-8x128": BREAKOUT,
    "breakout-128x8": replace(BREAKOUT, n_envs=128, n_steps=8),
    "starpilot-64x256": STARPILOT,
    "cartpole-seeds": replace(CARTPOLE, n_seeds=10, repeats=3),
    "minigrid-seeds": MINIGRID,
    "lunarlander-seeds": LUNARLANDER,
}
