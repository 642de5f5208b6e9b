"""Whether parallel environments are copies of each other, seen from their first episodes.

N environments that share their random numbers are fewer than N, and whatever is said about N on
them is void. What tells copies from an ordinary task:

- *Starts*. Beginning alike says nothing by itself: FrozenLake, CliffWalking or an Atari game always
  begin in one place, and N of them are as independent as the policy's own draws. But where starts
  differ from episode to episode, they must differ between environments. Let all N agree on the
  start of each of K episodes, the k-th of them being a share f_k of those K. The chance that N - 1
  independent environments drew the same is the product of f_k^(N - 1). One fixed start gives 1; few
  different starts need many episodes; starts that never repeat need two or three. The very first
  episode must agree but does not count among the K: a simulator just made may begin otherwise than
  one that was reset. A single start on which environments disagree ends the matter.
- *Lockstep*. All N give the same observations, rewards and ends for many steps in which their
  actions differ.
- *A random task with one start*. A fixed start is no fault, but where the task's name says random,
  its random numbers are not drawn, or the first observation does not show them.

EnvPool 1.2.5's MyoSuite has tasks of the last kind (myoHandReachRandom). Random dynamics that are
shared after a fixed start are not noticed. Whole games count: the frame after a lost life may well
be the same everywhere.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from isobatch.envs import BatchedEnv, Observation
from isobatch.experience.rollout import Rollout

CHANCE = 1e-6
"""What the agreement of independent environments would have to be less likely than."""
EPISODES = 16
"""Of each environment at most are looked at; a fixed start is taken for one after as many."""
LOCKSTEP = 128
"""Steps with different actions that must not all look the same."""
NAMED = 3
"""Episodes after which a task that is called random should have begun differently."""


class CopyWatch:
    """Looks at an environment's first rollouts, and warns once if its copies are copies.

    Ordinary environments begin differently: it has seen enough at their reset.
    """

    def __init__(self, env: BatchedEnv) -> None:
        self._env = env
        self._starts: list[bytes] = []
        """By episode, the start that all environments so far agree on."""
        self._begun = [0] * env.n_envs
        self._fresh = torch.ones(env.n_envs, dtype=torch.bool)
        self._over = env.n_envs < 2
        self._in_step, self._steps = True, 0

    def see(self, rollout: Rollout) -> None:
        """Take in the next rollout; warn where it shows that the environments are copies."""
        if not self._over:
            self._take_starts(rollout)
        if self._over:
            return
        if self._in_step:
            self._take_steps(rollout)
        found = self._found()
        if found is not None:
            from isobatch.envs.catalog import described

            warnings.warn(f"{described(self._env)}: {found}", stacklevel=2)
        self._over = found is not None or (min(self._begun) >= EPISODES and not self._in_step)

    def _found(self) -> str | None:
        """Say what is wrong, and what it means; None where nothing is."""
        count, episodes = len(self._begun), min(self._begun)
        starts = self._starts[1:episodes]
        if chance(starts, count) < CHANCE:
            return (
                f"the first {episodes} episodes of its {count} environments have the same starts, "
                "though starts differ from episode to episode: they share their random numbers or "
                "their list of starts, and comparisons of n_envs are invalid"
            )
        if self._in_step and self._steps >= LOCKSTEP:
            return (
                f"its {count} environments gave the same observations, rewards and episode ends in "
                f"{self._steps} steps with different actions: they are copies of each other, or "
                "actions have no effect, and comparisons of n_envs are invalid"
            )
        named = "random" in self._env.name.lower()
        if named and episodes >= NAMED and len(set(starts)) == 1:
            return (
                f"all of the first {episodes} episodes of its {count} environments have the same "
                "start, though it is called random: the start is not random, or the observation "
                "does not show it, and comparisons of n_envs hold for one start"
            )
        return None

    def _take_starts(self, rollout: Rollout) -> None:
        """Compare the starts of whole games, episode by episode."""
        first, over = rollout.first.cpu(), (rollout.over & rollout.valid).cpu()
        for t in range(len(first)):
            for n in (first[t] & self._fresh).nonzero()[:, 0].tolist():
                episode = self._begun[n]
                self._begun[n] += 1
                if episode >= EPISODES:
                    continue
                start = _bits(rollout.observations, t, n)
                if episode == len(self._starts):
                    self._starts.append(start)
                elif self._starts[episode] != start:
                    self._over = True
                    return
            self._fresh = self._fresh & ~first[t] | over[t]

    def _take_steps(self, rollout: Rollout) -> None:
        """Count the steps whose actions differ, as long as all that follows is the same."""
        done = rollout.terminated | rollout.truncated
        for t in range(len(done)):
            follow = (rows[t + 1] for rows in rollout.observations.values())
            if not all(_alike(rows) for rows in (rollout.rewards[t], done[t], *follow)):
                self._in_step = False
                return
            self._steps += not _alike(rollout.actions[t][rollout.valid[t]])


def chance(starts: list[bytes], n_envs: int) -> float:
    """Return how likely `n_envs` independent environments agree on these starts, one an episode.

    Taking each start for as frequent as it was among them.
    """
    share = {start: starts.count(start) / len(starts) for start in starts}
    return math.exp((n_envs - 1) * sum(math.log(share[start]) for start in starts))


def _alike(rows: Tensor) -> bool:
    """True where all rows [N, ...] are the same."""
    return bool((rows == rows[:1]).all())


def _bits(observations: Observation, t: int, n: int) -> bytes:
    return b"".join(rows[t, n].cpu().numpy().tobytes() for rows in observations.values())
