import copy
import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hand_made import ACTIONS, ENVS, PLAIN, STEPS, begin, experience, learn, made, weights
from torch import nn

from isobatch.algos import ppo
from isobatch.envs.spaces import ObservationLayout
from isobatch.experience import Rollout
from isobatch.state import TrainState


def learned(recipe, rollouts=None, chunk_size=1000, actions="discrete", encoder=None, env_steps=0):
    """Return (state, statistics) after learning from the rollouts, or from one of its own."""
    state = begin(recipe, actions, encoder)
    state.counters.env_steps = env_steps
    learner = made(ppo.Ppo, state, recipe, chunk_size)
    statistics = {}
    for rollout in rollouts or [experience(state)]:
        statistics = learn(learner, rollout)
    return state, statistics


def own_rollout(recipe, **changes):
    """Return a rollout of the recipe's own first policy, changed."""
    return dataclasses.replace(experience(begin(recipe)), **changes)


def textbook_ppo(recipe, rollout):
    """Return the weights after PPO as its papers and CleanRL write it, by plain PyTorch."""
    model = copy.deepcopy(begin(recipe).model)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.optimizer.learning_rate, eps=1e-5)
    settings = recipe.objective
    advantages = torch.zeros(STEPS, ENVS)
    for n in range(ENVS):
        following = 0.0
        for t in reversed(range(STEPS)):
            ended = bool(rollout.terminated[t, n])
            bootstrap = 0.0 if ended else float(rollout.values[t + 1, n])
            delta = rollout.rewards[t, n] + settings.gamma * bootstrap - rollout.values[t, n]
            cut = ended or bool(rollout.truncated[t, n])
            following = delta + (0 if cut else settings.gamma * settings.gae_lambda) * following
            advantages[t, n] = following
    valid = rollout.valid
    targets = (advantages + rollout.values[:-1])[valid]
    advantages = advantages[valid]
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    vectors, actions = rollout.observations["vector"][:-1][valid], rollout.actions[valid]
    for _ in range(recipe.batch.n_epochs):
        logits, values = model({"vector": vectors})
        policy = torch.distributions.Categorical(logits=logits)
        ratio = (policy.log_prob(actions.squeeze(1)) - rollout.logp[valid]).exp()
        clipped = ratio.clamp(1 - settings.clip_range, 1 + settings.clip_range)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages).mean()
        value_loss = 0.5 * (values - targets).square()
        if settings.clip_range_vf is not None:
            before, bound = rollout.values[:-1][valid], settings.clip_range_vf
            held = before + (values - before).clamp(-bound, bound)
            value_loss = torch.max(value_loss, 0.5 * (held - targets).square())
        value_loss = value_loss.mean()
        loss = -surrogate + settings.vf_coef * value_loss
        loss = loss - settings.ent_coef * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.max_grad_norm or 1e9)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("clip_range_vf", [None, 0.05])
@pytest.mark.parametrize("architecture", ["shared", "dual"])
def test_learning_is_textbook_ppo(architecture, clip_range_vf):
    recipe = PLAIN.replace(
        optimizer="adam", learning_rate=0.02, n_epochs=6, ent_coef=0.01, max_grad_norm=0.5,
        architecture=architecture, clip_range_vf=clip_range_vf,
    )  # fmt: skip
    rollout = own_rollout(recipe)
    state, statistics = learned(recipe, [rollout])
    assert statistics["clip_fraction"] > 0.05
    torch.testing.assert_close(weights(state), textbook_ppo(recipe, rollout), rtol=0, atol=1e-4)


LAYOUTS = {
    "ppo": {},
    "ewma": {"algo": "ppo-ewma", "advantage_normalization": "ewma", "advantage_decay": 0.5},
    "by envs": {"minibatches_by": "envs"},
    "by minibatch": {"advantage_normalization": "minibatch"},
    "exact kl": {"objective": "kl", "kl_estimator": "exact"},
    "adaptive rate": {"learning_rate_schedule": "kl-adaptive", "desired_kl": 1e-4},
    "normalised": {"normalize_rewards": True, "normalize_observations": True},
    "clipped values": {"clip_range_vf": 0.05, "policy_hidden_sizes": (5,), "activation": "gelu"},
    "values apart": {"n_value_epochs": 3, "clip_range_vf": 0.05, "clip_vf_loss": "clipped"},
}


@pytest.mark.parametrize("overrides", LAYOUTS.values(), ids=[*LAYOUTS])
def test_rows_that_are_not_valid_do_not_matter(overrides):
    recipe = PLAIN.replace(n_minibatches=3, n_epochs=2, **overrides)
    rollouts = [experience(begin(recipe), seed) for seed in (0, 1)]
    dirty = [with_garbage(rollout) for rollout in rollouts]
    state, statistics = learned(recipe, rollouts)
    other, other_statistics = learned(recipe, dirty)
    assert not torch.equal(weights(state), weights(begin(recipe)))
    assert torch.equal(weights(state), weights(other))
    assert statistics == other_statistics
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def with_garbage(rollout):
    """Return the rollout with everything but the bootstrap values replaced where not valid."""
    random = torch.Generator().manual_seed(9)
    gone = ~rollout.valid
    assert gone.any()

    def spoiled(tensor):
        garbage = 1e3 * torch.randn(tensor.shape, generator=random)
        return torch.where(gone.view(*gone.shape, *[1] * (tensor.ndim - 2)), garbage, tensor)

    vectors = rollout.observations["vector"]
    return dataclasses.replace(
        rollout,
        observations={"vector": torch.cat([spoiled(vectors[:-1]), vectors[-1:]])},
        actions=torch.where(gone[..., None], 2 - rollout.actions, rollout.actions),
        params=spoiled(rollout.params),
        logp=spoiled(rollout.logp),
        rewards=spoiled(rollout.rewards),
        scores=spoiled(rollout.scores),
    )


def test_same_seed_same_bits():
    recipe = PLAIN.replace(n_minibatches=4, n_epochs=3, algo="ppo-ewma")
    first, second = learned(recipe), learned(recipe)
    assert torch.equal(weights(first[0]), weights(second[0]))
    assert first[1] == second[1]


@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma"])
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_chunks_do_not_change_what_is_learned(algo, actions):
    recipe = PLAIN.replace(n_minibatches=2, n_epochs=3, algo=algo)
    whole, _ = learned(recipe, actions=actions)
    chunked, _ = learned(recipe, actions=actions, chunk_size=5)
    torch.testing.assert_close(weights(chunked), weights(whole), rtol=0, atol=1e-6)


def test_statistics_of_the_first_step_by_hand():
    recipe = PLAIN.replace(advantage_normalization="none")
    rollout = own_rollout(recipe)
    advantages, targets = ppo.advantages_and_targets(begin(recipe), rollout)
    raw, wanted = advantages[rollout.valid], targets[rollout.valid]
    _, statistics = learned(recipe, [rollout])
    errors = wanted - rollout.values[:-1][rollout.valid]
    assert statistics["policy_loss"] == pytest.approx(-raw.mean().item(), abs=1e-6)
    assert statistics["value_loss"] == pytest.approx(0.5 * errors.square().mean().item(), rel=1e-4)
    assert statistics["advantage_std"] == pytest.approx(raw.std(correction=0).item(), rel=1e-5)
    unexplained = errors.var(correction=0) / wanted.var(correction=0)
    assert statistics["explained_variance"] == pytest.approx(1 - unexplained.item(), abs=1e-5)
    assert statistics["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert statistics["clip_fraction"] == 0


def test_policy_learns_from_the_observations_it_acted_on():
    recipe = PLAIN.replace(normalize_observations=True)
    state = begin(recipe)
    state.observation_normalizer.update(3 + 5 * torch.randn(100, 3))
    rollout = experience(state)
    statistics = learn(made(ppo.Ppo, state, recipe, 1000), rollout)
    assert statistics["approx_kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma"])
def test_exact_kl_penalty_is_between_the_proximal_policy_and_the_current_one(algo):
    recipe = PLAIN.replace(
        algo=algo, objective="kl", kl_estimator="exact", kl_coef=2.0, advantage_normalization="none"
    )
    state = begin(recipe)
    rollout, valid = experience(state), experience(state).valid
    rows = {"vector": rollout.observations["vector"][:-1][valid]}
    state.model.actor.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        current = torch.distributions.Categorical(logits=state.model(rows)[0])
        # The average still holds the policy that acted; without one, the rollout does.
        acted = torch.distributions.Categorical(logits=rollout.params[valid])
    kl = torch.distributions.kl_divergence(acted, current)
    log_ratio = current.log_prob(rollout.actions[valid].squeeze(1)) - rollout.logp[valid]
    advantages = ppo.advantages_and_targets(state, rollout)[0][valid]
    statistics = learn(made(ppo.Ppo, state, recipe, 1000), rollout)
    expected = (2 * kl - log_ratio.exp() * advantages).mean()
    assert kl.mean() > 0.01
    assert statistics["policy_loss"] == pytest.approx(expected.item(), rel=1e-4)


def test_counters_count_gradient_steps_and_epochs():
    state, _ = learned(PLAIN.replace(n_minibatches=4, n_epochs=3))
    assert (state.counters.grad_steps, state.counters.epochs) == (12, 3)


STRONG = PLAIN.replace(learning_rate=1.0, n_minibatches=4, n_epochs=4)


def test_proximal_decay_0_never_clips():
    _, ppo_statistics = learned(STRONG)
    _, statistics = learned(STRONG.replace(algo="ppo-ewma", proximal_decay=0.0))
    assert ppo_statistics["clip_fraction"] > 0.05
    assert statistics["approx_kl"] > 1e-3
    assert statistics["clip_fraction"] == 0


def traced(recipe):
    """Return (state, statistics, the actor's weights at the start and after each step)."""
    state = begin(recipe)
    learner = made(ppo.Ppo, state, recipe, 1000)
    trace, step = [copy.deepcopy(state.model.actor.state_dict())], state.optimizer.step

    def recorded(settings, learning_rate):
        step(settings, learning_rate)
        trace.append(copy.deepcopy(state.model.actor.state_dict()))

    state.optimizer.step = recorded  # pyright: ignore[reportAttributeAccessIssue]
    return state, learn(learner, experience(state)), trace


def test_proximal_policy_averages_the_gradient_steps():
    recipe = PLAIN.replace(algo="ppo-ewma", proximal_decay=0.5, n_epochs=2)
    state, _, thetas = traced(recipe)
    assert state.proximal is not None
    for name, average in state.proximal.module.state_dict().items():
        start, first, second = (theta[name] for theta in thetas)
        torch.testing.assert_close(average, (0.25 * start + 0.5 * first + second) / 1.75)


def test_slow_proximal_policy_of_the_first_iteration_is_ppo():
    slow, _ = learned(PLAIN.replace(algo="ppo-ewma"))
    plain, _ = learned(PLAIN)
    torch.testing.assert_close(weights(slow), weights(plain), rtol=0, atol=1e-6)


def test_target_kl_stops_early_and_says_so():
    state, statistics, _ = traced(STRONG.replace(target_kl=1e-3))
    taken = state.counters.grad_steps
    assert statistics["stopped_early"]
    assert 0 < taken < 16
    _, _, free = traced(STRONG)
    for name, weight in state.model.actor.state_dict().items():
        assert torch.equal(weight, free[taken][name])


def test_target_kl_that_is_not_reached_changes_nothing():
    free, statistics = learned(STRONG)
    held, held_statistics = learned(STRONG.replace(target_kl=1e6))
    assert "stopped_early" not in held_statistics
    assert held.counters.grad_steps == 16
    assert torch.equal(weights(held), weights(free))
    assert held_statistics == statistics


def scaled(rollout, factor):
    """Return the rollout with rewards and values, and so advantages, scaled."""
    return dataclasses.replace(
        rollout, rewards=rollout.rewards * factor, values=rollout.values * factor
    )


@pytest.mark.parametrize("kind", ["batch", "minibatch", "ewma", "none"])
def test_normalised_advantages_make_the_policy_blind_to_the_rewards_scale(kind):
    recipe = PLAIN.replace(advantage_normalization=kind, vf_coef=0.0, n_minibatches=2, n_epochs=2)
    rollout = own_rollout(recipe)
    small, _ = learned(recipe, [rollout])
    large, _ = learned(recipe, [scaled(rollout, 8.0)])
    blind = torch.allclose(weights(small), weights(large), rtol=0, atol=1e-5)
    assert blind == (kind != "none")


@pytest.mark.parametrize("kind", ["batch", "minibatch"])
def test_minibatch_normalisation_takes_each_minibatchs_own_moments(kind):
    recipe = PLAIN.replace(
        advantage_normalization=kind, minibatches_by="envs", n_minibatches=ENVS, vf_coef=0.0
    )
    rollout = own_rollout(recipe)
    # One environment's advantages scaled: a minibatch of its own when drawn by envs.
    uneven = scaled(rollout, torch.tensor([100.0, 1.0, 1.0, 1.0]))
    even, _ = learned(recipe, [rollout])
    other, _ = learned(recipe, [uneven])
    blind = torch.allclose(weights(even), weights(other), rtol=0, atol=1e-5)
    assert blind == (kind == "minibatch")


def normalised_by_minibatch():
    state = begin(PLAIN.replace(advantage_normalization="minibatch"))
    rollout = experience(state)
    advantages, targets = ppo.advantages_and_targets(state, rollout)
    return (
        ppo.Gathering(state, rollout, advantages, targets, {"clip_range": 0.2}),
        rollout,
        advantages,
    )


def test_minibatch_of_one_row_is_not_normalised_by_anothers_moments():
    gathering, _, _ = normalised_by_minibatch()
    alone = torch.tensor([3])
    gathering.begin_minibatch(alone)
    expected = gathering(alone).advantages.clone()
    gathering.begin_minibatch(torch.arange(8))
    gathering.begin_minibatch(alone)
    assert torch.equal(gathering(alone).advantages, expected)


def test_chunks_and_padding_are_normalised_by_the_whole_minibatch():
    gathering, rollout, advantages = normalised_by_minibatch()
    rows = rollout.valid.flatten().nonzero().squeeze(1)[:9]
    gathering.begin_minibatch(rows)
    whole = gathering(rows).advantages
    raw = advantages.flatten()[rows]
    torch.testing.assert_close(whole, (raw - raw.mean()) / (raw.std() + 1e-8))
    padded = gathering(torch.cat([rows, rows[:1].expand(4)])).advantages
    torch.testing.assert_close(padded[:9], whole)
    parts = [gathering(part).advantages for part in rows.split(4)]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_ewma_normalisation_remembers_the_last_iterations():
    recipe = PLAIN.replace(advantage_normalization="ewma", advantage_decay=0.5)
    rollouts = [experience(begin(recipe), seed) for seed in (0, 1)]
    rollouts[0] = scaled(rollouts[0], 10.0)
    state, _ = learned(recipe, rollouts)
    old, new = (
        ppo.advantages_and_targets(state, each)[0][each.valid].double() for each in rollouts
    )
    weight = 0.5 * len(old) + len(new)
    mean = (0.5 * old.sum() + new.sum()) / weight
    square = (0.5 * old.square().sum() + new.square().sum()) / weight
    assert state.advantage_moments.mean == pytest.approx(mean.item(), rel=1e-5)
    assert state.advantage_moments.var == pytest.approx((square - mean**2).item(), rel=1e-5)


def test_batch_normalisation_forgets_them():
    recipe = PLAIN.replace(advantage_decay=0.5)
    rollouts = [experience(begin(recipe), seed) for seed in (0, 1)]
    state, _ = learned(recipe, rollouts)
    raw = ppo.advantages_and_targets(state, rollouts[1])[0][rollouts[1].valid]
    assert state.advantage_moments.mean == pytest.approx(raw.mean().item(), abs=1e-6)


def test_linear_learning_rate_follows_environment_steps():
    recipe = PLAIN.replace(learning_rate_schedule="linear", total_timesteps=1000)
    start = weights(begin(recipe))
    full, statistics = learned(recipe, env_steps=0)
    late, late_statistics = learned(recipe, env_steps=750)
    assert statistics["learning_rate"] == pytest.approx(0.05)
    assert late_statistics["learning_rate"] == pytest.approx(0.0125)
    step, late_step = weights(full) - start, weights(late) - start
    torch.testing.assert_close(late_step, 0.25 * step, rtol=1e-3, atol=1e-6)


def test_chunks_do_not_change_clipped_values():
    recipe = PLAIN.replace(clip_range_vf=0.02, n_minibatches=2, n_epochs=4, learning_rate=0.2)
    state, statistics = learned(recipe)
    chunked, others = learned(recipe, chunk_size=5)
    torch.testing.assert_close(weights(chunked), weights(state), rtol=0, atol=1e-6)
    assert others == pytest.approx(statistics, abs=1e-5)
    free, _ = learned(recipe.replace(clip_range_vf=None))
    assert (weights(free) - weights(state)).abs().max() > 1e-3


def test_values_are_clipped_by_the_schedule_of_ratios():
    settings = {"clip_range_schedule": "linear", "total_timesteps": 1000, "n_epochs": 3}
    recipe = PLAIN.replace(clip_range_vf=0.04, clip_range=0.2, **settings)
    halved = PLAIN.replace(clip_range_vf=0.02, clip_range=0.1, n_epochs=3)
    rollout = own_rollout(recipe)
    half, _ = learned(recipe, [rollout], env_steps=500)
    torch.testing.assert_close(weights(half), weights(learned(halved, [rollout])[0]))


def test_linear_clip_range_follows_environment_steps():
    recipe = STRONG.replace(clip_range_schedule="linear", total_timesteps=1000)
    rollout = own_rollout(recipe)
    late, statistics = learned(recipe, [rollout], env_steps=500)
    half, _ = learned(STRONG.replace(clip_range=0.1), [rollout])
    assert statistics["clip_range"] == pytest.approx(0.1)
    torch.testing.assert_close(weights(late), weights(half), rtol=0, atol=1e-6)


def flags(*rows, steps):
    return torch.tensor([[row in rows] for row in range(steps)])


def next_and_same_step():
    """Return one environment's experience, laid out with next-step and with same-step resets.

    Eight transitions: the third ends by truncation in a state worth 2.5, the sixth by termination.
    """
    rewards = [1.0, -2.0, 3.0, 0.5, 2.0, -1.0, 4.0, 1.5]
    values = [0.3, -0.4, 1.1, 0.9, -0.7, 0.2, 0.8, -0.1, 0.6]
    next_step = hand_made(
        [*rewards[:3], 0.0, *rewards[3:6], 0.0, *rewards[6:]],
        [*values[:3], 2.5, *values[3:6], 7.0, *values[6:]],
        terminated=flags(6, steps=10),
        truncated=flags(2, steps=10),
        valid=~flags(3, 7, steps=10),
        first=flags(0, 4, 8, steps=10),
    )
    same_step = hand_made(
        rewards,
        values,
        terminated=flags(5, steps=8),
        truncated=flags(2, steps=8),
        valid=~flags(steps=8),
        first=flags(0, 3, 6, steps=8),
        final_values=2.5 * flags(2, steps=8),
    )
    return next_step, same_step


def hand_made(rewards, values, terminated, truncated, valid, first, final_values=None):
    steps = len(rewards)
    column = torch.tensor(rewards)[:, None]
    return Rollout(
        observations={"vector": torch.zeros(steps + 1, 1, 3)},
        actions=torch.zeros(steps, 1, 1, dtype=torch.long),
        params=torch.zeros(steps, 1, 3),
        logp=torch.zeros(steps, 1),
        values=torch.tensor(values)[:, None],
        rewards=column,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        first=first,
        final_values=final_values,
        scores=column,
        over=terminated | truncated,
    )


@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_same_step_resets_give_the_advantages_of_next_step_ones(normalize_rewards):
    recipe = PLAIN.replace(normalize_rewards=normalize_rewards, n_envs=1)
    pair = next_and_same_step()
    (a, a_targets), (b, b_targets) = (
        ppo.advantages_and_targets(begin(recipe), each) for each in pair
    )
    valid = pair[0].valid
    torch.testing.assert_close(a[valid], b.flatten())
    torch.testing.assert_close(a_targets[valid], b_targets.flatten())


def test_short_last_rollout_is_not_learned_from():
    recipe = PLAIN.replace(n_minibatches=2)
    rollout = own_rollout(recipe)
    per_step = {
        name: tensor[:2]
        for name, tensor in vars(rollout).items()
        if isinstance(tensor, torch.Tensor) and name != "values"
    }
    vectors = {"vector": rollout.observations["vector"][:3]}
    short = dataclasses.replace(
        rollout, **per_step, observations=vectors, values=rollout.values[:3]
    )
    state, statistics = learned(recipe, [short])
    assert state.counters.grad_steps == 0
    assert torch.equal(weights(state), weights(begin(recipe)))
    assert "policy_loss" not in statistics


@pytest.mark.parametrize("architecture", ["shared", "dual", "detach"])
def test_users_own_encoder_is_trained(architecture):
    own = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
    recipe = PLAIN.replace(architecture=architecture, encoder="custom", n_epochs=3)
    start = begin(recipe, encoder=own).model.actor.encoder.state_dict()
    state, _ = learned(recipe, encoder=own)
    trained = state.model.actor.encoder.state_dict()
    assert all(not torch.equal(start[name], trained[name]) for name in start)


class Branching(nn.Module):
    """An encoder whose way depends on its data, which no compiler can follow whole."""

    def __init__(self, layout):
        super().__init__()
        self.layer = nn.Linear(layout.vector, 8)

    def forward(self, vector):
        features = self.layer(vector)
        return features.tanh() if float(features.detach().sum()) > 0 else features.relu()


def test_encoder_that_cannot_be_compiled_is_said_and_learns_all_the_same():
    recipe = PLAIN.replace(encoder="custom", compile="on", n_epochs=3)
    with pytest.warns(UserWarning, match="continues uncompiled"):
        state, _ = learned(recipe, encoder=Branching)
    plain, _ = learned(recipe.replace(compile="off"), encoder=Branching)
    assert torch.equal(weights(state), weights(plain))


class Transposed(nn.Module):
    """An encoder whose weights do not lie in memory row by row."""

    def __init__(self, layout):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(layout.vector, 8).t())

    def forward(self, vector):
        return nn.functional.linear(vector, self.weight).tanh()


IMAGES = ObservationLayout.of(spaces.Box(0, 255, (3, 40, 40), np.uint8), "hand-made")


@pytest.mark.parametrize("case", ["mlp", "images", "transposed"])
def test_compiled_update_reads_the_models_own_weights(case):
    recipe = PLAIN.replace(compile="on", architecture="shared")
    if case == "images":
        state = TrainState.begin(recipe, IMAGES, ACTIONS["discrete"], torch.device("cpu"))
    else:
        state = begin(recipe, encoder=Transposed if case == "transposed" else None)
    stepper, _ = made(ppo.Ppo, state, recipe, 64)._steppers(recipe)
    views = state.parameters.views(state.parameters.vector) if stepper.compiled else {}
    for name, parameter in state.model.named_parameters():
        assert torch.equal(views.get(name, parameter), parameter), name


@pytest.mark.parametrize("overrides", LAYOUTS.values(), ids=LAYOUTS)
def test_an_update_as_its_compiler_gets_it_learns_what_the_plain_one_does(traced_only, overrides):
    check_compiled(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(each, id=name, marks=[] if name == "ppo" else pytest.mark.long)
        for name, each in LAYOUTS.items()
    ],
)
def test_a_compiled_update_learns_what_the_plain_one_does(overrides):
    check_compiled(overrides)


def check_compiled(overrides):
    recipe = PLAIN.replace(n_minibatches=3, n_epochs=2, **overrides)
    plain, statistics = learned(recipe)
    compiled, compiled_statistics = learned(recipe.replace(compile="on"))
    torch.testing.assert_close(weights(compiled), weights(plain), rtol=0, atol=1e-6)
    assert compiled_statistics == pytest.approx(statistics, abs=1e-5)


@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma"])
def test_saved_state_learns_on_as_the_run_itself(algo):
    recipe = PLAIN.replace(
        algo=algo, optimizer="adam", normalize_observations=True, n_minibatches=2, n_epochs=2,
        advantage_normalization="ewma", advantage_decay=0.6,
    )  # fmt: skip
    state, _ = learned(recipe)
    state.observation_normalizer.update(torch.randn(50, 3))
    restored = begin(recipe.replace(seed=5))
    restored.load(copy.deepcopy(state.tensors()), copy.deepcopy(state.numbers()))
    rollout = experience(state, seed=3)
    for each in (state, restored):
        learn(made(ppo.Ppo, each, recipe, 1000), rollout)
    assert torch.equal(weights(restored), weights(state))
    assert restored.counters == state.counters
