"""Stable-Baselines3 as a peer, on its usual path for each kind of environment."""

from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from benchmarks.peers.cases import Case
from benchmarks.peers.record import Task, Watch, mean_or_none, one_by_one, serve


class Marks(BaseCallback):
    """Marks the watch when a rollout starts, which is when the last update has ended."""

    def __init__(self, watch: Watch, warm_up: int) -> None:
        super().__init__()
        self.watch, self.warm_up = watch, warm_up

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == 0:
            self.watch.begin(self.warm_up)
        else:
            self.watch.mark(self.num_timesteps)

    def _on_training_end(self) -> None:
        self.watch.mark(self.num_timesteps)


def make_env(case: Case, seed: int) -> VecEnv:
    """Return classic control by Gymnasium, all others by EnvPool."""
    if case.env in ("CartPole-v1", "Pendulum-v1"):
        env = make_vec_env(case.env, n_envs=case.n_envs, seed=seed)
    else:
        from benchmarks.peers.sb3_envpool import EnvPoolVecEnv

        atari = {"episodic_life": True, "reward_clip": True} if case.encoder == "nature" else {}
        env = EnvPoolVecEnv(case.env, case.n_envs, seed, **atari)
    return VecNormalize(env, gamma=case.gamma) if case.normalize else env


def policy(case: Case) -> tuple[str, dict[str, Any]]:
    """Return the policy's name and its arguments."""
    if case.encoder == "mlp":
        sizes = list(case.hidden_sizes)
        return "MlpPolicy", {"net_arch": {"pi": sizes, "vf": sizes}}
    if case.encoder == "nature":
        return "CnnPolicy", {"net_arch": []}
    from benchmarks.peers.sb3_envpool import ImpalaFeatures

    return "CnnPolicy", {"features_extractor_class": ImpalaFeatures, "net_arch": []}


def train_one(task: Task, seed: int) -> float | None:
    """Train one seed in this process."""
    case = task.case
    if case.torch_threads is not None:
        torch.set_num_threads(case.torch_threads)
    name, arguments = policy(case)
    env = make_env(case, seed)
    agent = PPO(
        name,
        env,
        policy_kwargs=arguments,
        n_steps=case.n_steps,
        batch_size=case.minibatch_size,
        n_epochs=case.n_epochs,
        learning_rate=case.learning_rate,
        gamma=case.gamma,
        gae_lambda=case.gae_lambda,
        clip_range=case.clip_range,
        ent_coef=case.ent_coef,
        vf_coef=case.vf_coef / 2,  # of the squared error, without the 0.5
        max_grad_norm=case.max_grad_norm,
        seed=seed,
        device="cpu",
    )
    agent.learn(case.total_timesteps, callback=Marks(task.watch, case.warm_up))
    env.close()
    return mean_or_none([episode["r"] for episode in agent.ep_info_buffer or []])


if __name__ == "__main__":
    serve(one_by_one(train_one), ("stable-baselines3", "torch", "gymnasium", "envpool"))
