"""TorchRL as a peer: its collector, advantage estimator, buffer and loss on Gymnasium's vectors.

Where rewards are normalised, its transform also takes their mean away.
"""

from typing import Any

import gymnasium as gym
import torch
from tensordict.nn import (
    AddStateIndependentNormalScale,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Categorical, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import Compose, EnvBase, GymWrapper, RewardSum, TransformedEnv, VecNormV2
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.peers.cases import ADAM_EPS, Case
from benchmarks.peers.record import Cannot, Task, mean_or_none, one_by_one, serve


def make_env(case: Case, seed: int) -> EnvBase:
    """Return Gymnasium's vector, reset by TorchRL: of the ways to N environments the fastest."""
    vector = gym.vector.SyncVectorEnv(
        [lambda: gym.make(case.env) for _ in range(case.n_envs)],
        autoreset_mode=gym.vector.AutoresetMode.DISABLED,
    )
    transforms = [RewardSum()]
    if case.normalize:
        transforms += [
            VecNormV2(in_keys=["observation"], decay=1.0, reduce_batch_dims=True),
            VecNormV2(in_keys=["reward"], decay=1.0, reduce_batch_dims=True),
        ]
    env = TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), Compose(*transforms))
    env.set_seed(seed)
    return env


def mlp(case: Case, inputs: int, outputs: int) -> MLP:
    """Return a network of the case's hidden layers."""
    return MLP(inputs, outputs, num_cells=list(case.hidden_sizes), activation_class=nn.Tanh)


def networks(case: Case, env: EnvBase) -> tuple[ProbabilisticTensorDictSequential, ValueOperator]:
    """Return policy and value function, a network each."""
    inputs = env.observation_spec["observation"].shape[-1]
    space = env.action_spec_unbatched
    if isinstance(space, Categorical):
        body, keys = mlp(case, inputs, space.n), ["logits"]
        distribution: Any = torch.distributions.Categorical
    else:
        scale = AddStateIndependentNormalScale(space.shape[-1])
        body = nn.Sequential(mlp(case, inputs, space.shape[-1]), scale)
        keys, distribution = ["loc", "scale"], IndependentNormal
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=space,
        distribution_class=distribution,
        return_log_prob=True,
    )
    return actor, ValueOperator(mlp(case, inputs, 1), in_keys=["observation"])


def train_one(task: Task, seed: int) -> float | None:
    """Train one seed in this process."""
    case = task.case
    if case.encoder != "mlp" or case.env.startswith("MiniGrid"):
        raise Cannot("the adapter has Gymnasium's classic control only")
    torch.set_num_threads(case.torch_threads or torch.get_num_threads())
    torch.manual_seed(seed)
    env = make_env(case, seed)
    actor, critic = networks(case, env)
    collector = Collector(
        env, actor, frames_per_batch=case.rollout_size, total_frames=case.total_timesteps
    )
    gae = GAE(gamma=case.gamma, lmbda=case.gae_lambda, value_network=critic, average_gae=False)
    loss_of = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=case.clip_range,
        entropy_bonus=case.ent_coef > 0,
        entropy_coeff=case.ent_coef,
        critic_coeff=case.vf_coef / 2,  # of the squared error, without the 0.5
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    parameters = list(loss_of.parameters())
    optimizer = torch.optim.Adam(parameters, lr=case.learning_rate, eps=ADAM_EPS)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(case.rollout_size),
        sampler=SamplerWithoutReplacement(),
        batch_size=case.minibatch_size,
    )
    returns: list[float] = []
    task.watch.begin(case.warm_up)
    for iteration, rollout in enumerate(collector, 1):
        ended = rollout["next", "done"]
        returns += rollout["next", "episode_reward"][ended].tolist()
        with torch.no_grad():
            rollout = gae(rollout)
        buffer.empty()
        buffer.extend(rollout.reshape(-1))
        for _ in range(case.n_epochs):
            for minibatch in buffer:
                losses = loss_of(minibatch)
                loss = losses["loss_objective"] + losses["loss_critic"]
                if case.ent_coef:
                    loss = loss + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, case.max_grad_norm)
                optimizer.step()
        collector.update_policy_weights_()
        task.watch.mark(iteration * case.rollout_size)
    collector.shutdown()
    return mean_or_none(returns)


if __name__ == "__main__":
    serve(one_by_one(train_one), ("torchrl", "tensordict", "torch", "gymnasium"))
