"""Weights that CleanRL's scripts save: the same actions and values as their networks give."""

import numpy as np
import pytest
import torch
from sb3_models import Colours  # noqa: F401 - Registers the environment.
from torch import nn

import isobatch
from isobatch import UserError, weights


def mlp(inputs, outputs, widths=(64, 64)):
    layers = []
    for before, after in zip((inputs, *widths), widths, strict=False):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class Discrete(nn.Module):
    """As in ppo.py."""

    def __init__(self):
        super().__init__()
        self.critic, self.actor = mlp(4, 1), mlp(4, 2)

    def forward(self, x):
        return self.actor(x), self.critic(x)


class Continuous(nn.Module):
    """As in ppo_continuous_action.py."""

    def __init__(self):
        super().__init__()
        self.critic, self.actor_mean = mlp(3, 1), mlp(3, 1)
        self.actor_logstd = nn.Parameter(torch.full((1, 1), -0.5))

    def forward(self, x):
        mean = self.actor_mean(x)
        return torch.cat([mean, self.actor_logstd.expand_as(mean)], 1), self.critic(x)


class Atari(nn.Module):
    """As in ppo_atari.py, for other pictures."""

    def __init__(self):
        super().__init__()
        sizes = ((3, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        convolutions = [nn.Conv2d(a, b, kernel, stride) for a, b, kernel, stride in sizes]
        layers = [part for each in convolutions for part in (each, nn.ReLU())]
        self.network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 512), nn.ReLU())
        self.actor, self.critic = nn.Linear(512, 5), nn.Linear(512, 1)

    def forward(self, x):
        hidden = self.network(x.movedim(-1, 1) / 255)
        return self.actor(hidden), self.critic(hidden)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv0, self.conv1 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return x + self.conv1(torch.relu(self.conv0(torch.relu(x))))


class Stage(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1)
        self.res_block0, self.res_block1 = Block(after), Block(after)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x), 3, 2, 1)
        return self.res_block1(self.res_block0(x))


class Procgen(nn.Module):
    """As in ppo_procgen.py, for other pictures."""

    def __init__(self):
        super().__init__()
        stages = [Stage(a, b) for a, b in ((3, 16), (16, 32), (32, 32))]
        self.network = nn.Sequential(
            *stages, nn.Flatten(), nn.ReLU(), nn.Linear(32 * 5 * 5, 256), nn.ReLU()
        )
        self.actor, self.critic = nn.Linear(256, 5), nn.Linear(256, 1)

    forward = Atari.forward


class Phasic(Procgen):
    """As in ppg_procgen.py: a second value head."""

    def __init__(self):
        super().__init__()
        self.aux_critic = nn.Linear(256, 1)


CASES = {
    "ppg_procgen": (Phasic, "Colours-v0"),
    "ppo": (Discrete, "CartPole-v1"),
    "ppo_continuous_action": (Continuous, "Pendulum-v1"),
    "ppo_atari": (Atari, "Colours-v0"),
    "ppo_procgen": (Procgen, "Colours-v0"),
}


@pytest.mark.parametrize("script", CASES)
def test_the_same_policy(tmp_path, script):
    kind, env = CASES[script]
    torch.manual_seed(0)
    agent, file = kind(), tmp_path / f"{script}.cleanrl_model"
    torch.save(agent.state_dict(), file)
    small = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 100}
    small |= {"num_aux_rollouts": 1} if script == "ppg_procgen" else {}
    landed = weights.from_cleanrl(file, env, tmp_path / "run", settings=small)
    policy = isobatch.load(landed.run.path)
    assert policy.env_steps == 96
    assert policy.recipe.batch.n_envs == 2
    random = np.random.default_rng(0)
    shape = policy.observation_layout.leaves[0].shape
    seen = (
        random.integers(0, 256, (100, *shape), np.uint8)
        if len(shape) == 3
        else random.normal(0, 3, (1000, *shape)).astype(np.float32).clip(-10, 10)
    )
    with torch.no_grad():
        params, values = agent(torch.as_tensor(seen).float())
        parts = policy.observation_layout.encode(seen)
        ours, _ = policy.model.act(policy.normalizer(parts))
    torch.testing.assert_close(ours, params, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(policy.values(seen), values.flatten(), rtol=1e-5, atol=1e-5)
    told = any(note.startswith("observation statistics") for note in landed.notes)
    assert told == (script == "ppo_continuous_action")


def test_other_weights_are_refused(tmp_path):
    file = tmp_path / "dqn.cleanrl_model"
    torch.save(nn.Linear(2, 2).state_dict(), file)
    with pytest.raises(UserError, match="not of CleanRL's"):
        weights.from_cleanrl(file, "CartPole-v1", tmp_path / "run")
    torch.save(Discrete().state_dict(), file)
    with pytest.raises(UserError, match=r"64x4 in the file and 64x6"):
        weights.from_cleanrl(file, "Acrobot-v1", tmp_path / "run")
    with pytest.raises(UserError, match="pqn has no policy"):
        weights.from_cleanrl(file, "CartPole-v1", tmp_path / "run", settings={"script": "pqn"})
    torch.save({"actor": 3}, file)
    with pytest.raises(UserError, match="no tensor"):
        weights.from_cleanrl(file, "CartPole-v1", tmp_path / "run")
