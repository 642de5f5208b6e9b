"""A run's policy as Stable-Baselines3 saves one: made with SB3's own classes."""

from __future__ import annotations

import io
import math
import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from isobatch import exchange, files
from isobatch.errors import UserError, one_line
from isobatch.exchange.networks import ACTIVATIONS
from isobatch.exchange.values import options
from isobatch.models import ActorCritic
from isobatch.recipe import Recipe
from isobatch.run import policy as policies
from isobatch.run.policy import Policy
from isobatch.run.reading import read_checkpoint, read_numbers
from isobatch.update.optimize import FlatParameters
from isobatch.weights.names import SB3, SB3_ALIASES, names, widths
from isobatch.weights.sb3 import BESIDE, REMEMBERED
from isobatch.weights.sb3_spaces import SpacesOnly, refuse, spaces_of

MISSING = "stable_baselines3 is not installed: pip install stable-baselines3"
CARRIED = (
    "normalize_observations", "normalize_rewards", "reward_gamma", "reward_clip",
    "observation_clip", "normalize_epsilon", "update_statistics",
)  # fmt: skip
"""Fields that SB3's settings cannot say, and VecNormalize's file does."""


class Exported(NamedTuple):
    """A policy that Stable-Baselines3 loads."""

    path: Path
    algorithm: str
    """The class that loads it: PPO or A2C."""
    normalizer: Path | None
    """VecNormalize's file, None where nothing is normalised."""
    missing: list[str]
    """A line for each thing that SB3 cannot say."""


def to_sb3(run: str | Path, out: str | Path | None = None, *, best: bool = False) -> Exported:
    """Write a run's policy as a zip that PPO or A2C of Stable-Baselines3 loads.

    By default sb3/model.zip in the run directory. Statistics of observations and rewards go into
    vecnormalize.pkl beside it. `best` takes the policy with the highest evaluation.
    """
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise UserError(MISSING) from None
    run, loaded = Path(run), policies.load(run, best=best)
    model = loaded.model
    if not isinstance(model, ActorCritic):
        raise UserError(f"{run}: Stable-Baselines3 has no {loaded.recipe.algo}")
    out = run / "sb3" / "model.zip" if out is None else Path(out)
    normalizes = loaded.recipe.normalize
    beside = out.parent / BESIDE[0]
    is_normalized = normalizes.normalize_observations or normalizes.normalize_rewards
    for path in [out, beside] if is_normalized else [out]:
        if path.exists():
            raise UserError(f"{path} exists: choose another --out")
    refuse(loaded)
    observed, acted = spaces_of(loaded)
    recipe = _settings_of(loaded)
    written = exchange.write("sb3", recipe)
    missing = [line for line in written.missing if line.partition(" ")[0] not in CARRIED]
    if is_normalized and normalizes.update_statistics != "step":
        missing.append("update_statistics rollout: SB3's VecNormalize updates them at every step")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # On batches, devices and what environments should be.
        try:
            made = _made(loaded, model, written.given, observed, acted)
        except (AssertionError, TypeError, ValueError, NotImplementedError) as error:
            raise UserError(f"Stable-Baselines3 cannot hold {run}: {one_line(error)}") from None
        made.policy.load_state_dict(_weights(model))
        missing += _optimizer(made.policy, model, run, loaded) + _unshared(loaded, model)
        content = io.BytesIO()
        made.save(content)
        statistics = _normalizer(loaded, observed, acted) if is_normalized else None
    with files.saving(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    files.save(out, content.getvalue())
    if statistics is not None:
        files.save(beside, pickle.dumps(statistics))
    return Exported(out, type(made).__name__, beside if statistics is not None else None, missing)


def _unshared(policy: Policy, model: ActorCritic) -> list[str]:
    """Return a line where SB3 shares layers otherwise than the run did."""
    if not _image(policy) and model.critic_encoder is None:
        return [f"architecture {model.architecture}: SB3 trains policy and value apart from now on"]
    if model.architecture == "detach":
        return ["architecture detach: SB3 lets the value's loss train the encoder too"]
    return []


def _image(policy: Policy) -> bool:
    return policy.observation_layout.image is not None


def _settings_of(policy: Policy) -> Recipe:
    """Return the recipe as SB3 might have it: PPG's policy phase is PPO."""
    recipe = policy.recipe
    if recipe.is_phasic:
        recipe = recipe.replace(algo="ppo")
    return recipe.replace(encoder="nature") if _image(policy) else recipe


def _made(
    policy: Policy,
    model: ActorCritic,
    given: dict[str, Any],
    observed: spaces.Space,
    acted: spaces.Space,
) -> Any:
    """Return SB3's PPO or A2C with the run's settings and networks, not yet its weights."""
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    settings = dict(given)
    algorithm = A2C if settings.pop("algo", "ppo") == "a2c" else PPO
    for name in ("env", "total_timesteps", "device", "seed", "policy"):
        settings.pop(name, None)
    n_envs = settings.pop("n_envs", 1)
    kwargs = options(settings.pop("policy_kwargs", None) or {}) | _networks(policy, model)
    settings = {name: _scheduled(value) for name, value in settings.items()}
    # Two environments: room for a rollout of more than one row, which PPO insists on.
    env = DummyVecEnv([lambda: SpacesOnly(observed, acted)] * 2)
    kind = "CnnPolicy" if _image(policy) else "MlpPolicy"
    if isinstance(observed, spaces.Dict):
        kind = "MultiInputPolicy"
    made = algorithm(kind, env, policy_kwargs=kwargs, device="cpu", **settings)
    made.n_envs, made.seed = n_envs, policy.recipe.seed
    made.num_timesteps, made._total_timesteps = policy.env_steps, policy.recipe.total_timesteps
    made._current_progress_remaining = 1 - policy.env_steps / policy.recipe.total_timesteps
    return made


def _networks(policy: Policy, model: ActorCritic) -> dict[str, Any]:
    """Return the policy_kwargs of the networks, from the weights themselves."""
    weights, activation = _weights(model), policy.recipe.model.activation
    theirs = next(name for name, ours in ACTIVATIONS.items() if ours == activation)
    kwargs = {
        "net_arch": {"pi": widths(weights, SB3.policy), "vf": widths(weights, SB3.value)},
        "activation_fn": getattr(nn, theirs),
    }
    shared = {"share_features_extractor": model.critic_encoder is None}
    return kwargs | shared if _image(policy) else kwargs


def _scheduled(value: Any) -> Any:
    """Return a setting, lin_X as SB3's own schedule: no class of ours may be in the zip."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    from stable_baselines3.common import utils

    start = float(value.removeprefix("lin_"))
    if hasattr(utils, "LinearSchedule"):
        return utils.LinearSchedule(start, 0.0, 1.0)
    return utils.get_linear_fn(start, 0.0, 1.0)  # SB3 < 2.7.


def _weights(model: ActorCritic) -> dict[str, Tensor]:
    """Return the weights under SB3's names, what is shared under each of its names."""
    known = names(SB3, model)
    own = {
        name: value.detach().contiguous().clone()
        for name, value in model.state_dict().items()
        if name in known
    }
    found = {known[name]: value for name, value in own.items()}
    if model.critic_encoder is None:  # The value's is a copy of the policy's.
        apart = {SB3.policy: SB3.value, "features_extractor.": SB3_ALIASES[1]}
        found |= {
            theirs.replace(prefix, copy): own[name]
            for name, theirs in known.items()
            for prefix, copy in apart.items()
            if name.startswith("actor.encoder.") and theirs.startswith(prefix)
        }
    encoder = "features_extractor."
    return found | {
        SB3_ALIASES[0] + name.removeprefix(encoder): value
        for name, value in found.items()
        if name.startswith(encoder)
    }


def _optimizer(theirs: nn.Module, model: ActorCritic, run: Path, policy: Policy) -> list[str]:
    """Give SB3's optimiser what the run's remembers; return a line where that cannot be."""
    kept = REMEMBERED.get(policy.recipe.optimizer.optimizer)
    tensors, counters = read_checkpoint(run), read_numbers(run).get("counters", {})
    one_to_one = model.critic_encoder is not None or _image(policy)
    if not (tensors and kept and one_to_one and counters.get("env_steps") == policy.env_steps):
        return ["the optimiser's averages: SB3 begins them anew"]
    if _image(policy):
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    parameters = FlatParameters(model)
    views = {name: parameters.views(tensors[f"optimizer.{ours}"]) for ours, name in kept.items()}
    ours = {theirs: name for name, theirs in names(SB3, model).items()}
    step = torch.tensor(float(tensors.get("optimizer.count", torch.tensor(0))))
    for name, parameter in theirs.named_parameters():
        found = {part: each[ours[name]].contiguous().clone() for part, each in views.items()}
        theirs.optimizer.state[parameter] = {"step": step.clone(), **found}  # pyright: ignore
    return []


def _normalizer(policy: Policy, observed: spaces.Space, acted: spaces.Space) -> Any:
    """Return SB3's VecNormalize with the run's statistics."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    settings, moments = policy.recipe.normalize, policy.normalizer.moments
    made = VecNormalize(
        DummyVecEnv([lambda: SpacesOnly(observed, acted)]),
        norm_obs=moments is not None,
        norm_reward=settings.normalize_rewards,
        clip_obs=settings.observation_clip or math.inf,
        clip_reward=settings.reward_clip,
        gamma=settings.reward_gamma,
        epsilon=settings.normalize_epsilon,
    )
    if moments is not None:
        start = 0
        for leaf in policy.observation_layout.leaves:
            part = slice(start, start + leaf.size)
            mean, var = (
                each[part].numpy().reshape(leaf.shape) for each in (moments.mean, moments.var)
            )
            statistics: Any = made.obs_rms
            own = statistics[leaf.path[0]] if leaf.path else statistics
            own.mean, own.var, own.count = mean.copy(), var.copy(), float(moments.count)
            start += leaf.size
    if settings.normalize_rewards and policy.reward_moments is not None:
        for name, value in policy.reward_moments.items():
            setattr(made.ret_rms, name, float(value) if name == "count" else value.numpy().copy())
    return made
