"""State-dependent exploration (gSDE), against Stable-Baselines3's own."""

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy

from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.errors import UserError
from isobatch.experience import Several, Single
from isobatch.models import ActorCritic
from isobatch.models.acting import acting
from isobatch.normalize import ObservationNormalizer
from isobatch.presets import preset
from isobatch.recipe import Model

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
FEATURES, ROWS = 5, 7
LIKE = torch.zeros(())


def made(actions: spaces.Space = ACTIONS, **settings) -> ActorCritic:
    layouts = ObservationLayout.of(OBSERVATIONS, "test"), ActionLayout.of(actions, "test")
    model = Model(use_sde=True, hidden_sizes=(6, FEATURES), log_std_init=-0.5, **settings)
    return ActorCritic(*layouts, model)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model():
    torch.manual_seed(0)
    found = made()
    with torch.no_grad():
        for each in found.parameters():
            each.add_(0.3 * torch.randn_like(each))
    return found


@pytest.fixture
def seen():
    return {"vector": torch.randn(ROWS, 3, generator=seeded())}


def test_actions_and_their_probabilities_are_sb3s(model, seen):
    features = model.actor.hidden(model.actor.encoder(seen))
    means = model.actor.head(features)
    theirs = StateDependentNoiseDistribution(2)
    theirs.proba_distribution_net(FEATURES)
    theirs.sample_weights(model.actor.free, ROWS)
    theirs.proba_distribution(means, model.actor.free, features)
    # The same matrices, as standard normal numbers.
    noise = (theirs.exploration_matrices / model.actor.free.exp()).detach()
    actions, params, values = model.draw(seen, noise)
    assert values is None  # The value function has its own encoder.
    torch.testing.assert_close(actions, theirs.sample(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(params.chunk(2, 1)[1].exp(), theirs.distribution.stddev)
    logp, entropy = model.distribution.evaluate(params, actions)
    torch.testing.assert_close(logp, theirs.log_prob(actions), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, theirs.entropy(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.distribution.mode(params), theirs.mode())


def test_acting_gives_the_same_parameters(model, seen):
    with torch.no_grad():
        params, _ = acting(model, lambda observation: observation, ROWS)(seen)
        torch.testing.assert_close(params, model(seen)[0])


def test_gradients_are_those_of_sb3s_policy(model, seen):
    """The standard deviation trains its matrix, and no layer before it."""
    policy = ActorCriticPolicy(
        OBSERVATIONS, ACTIONS, lambda _: 3e-4, [6, FEATURES], use_sde=True
    )  # fmt: skip
    mine = dict(model.actor.named_parameters())
    net = policy.mlp_extractor.policy_net
    pairs = {
        "free": policy.log_std,
        "encoder.vector.layers.0.weight": net[0].weight,
        "encoder.vector.layers.0.bias": net[0].bias,
        "encoder.vector.layers.1.weight": net[2].weight,
        "encoder.vector.layers.1.bias": net[2].bias,
        "head.weight": policy.action_net.weight,
        "head.bias": policy.action_net.bias,
    }
    assert pairs.keys() == mine.keys()
    with torch.no_grad():
        for name, its in pairs.items():
            its.copy_(mine[name])
    actions = torch.randn(ROWS, 2, generator=seeded(1))
    _, logp, entropy = policy.evaluate_actions(seen["vector"], actions)
    assert entropy is not None
    (logp.sum() + 0.1 * entropy.sum()).backward()
    params, _ = model(seen)
    own, own_entropy = model.distribution.evaluate(params, actions)
    torch.testing.assert_close(own, logp, rtol=1e-5, atol=1e-5)
    (own.sum() + 0.1 * own_entropy.sum()).backward()
    for name, its in pairs.items():
        torch.testing.assert_close(mine[name].grad, its.grad, rtol=1e-4, atol=1e-5)


def actor_of(model, hold, seed=0):
    return Single(model, ObservationNormalizer(None, torch.device("cpu")), seeded(seed), hold)


@pytest.mark.parametrize(("hold", "drawn"), [(1, 7), (3, 3), (7, 1), (100, 1)])
def test_matrices_are_held(model, hold, drawn):
    noise = actor_of(model, hold).noise(7, 4, LIKE)
    assert len(noise) == 7
    assert noise[0].shape == (4, FEATURES, 2)
    assert len(torch.stack(list(noise)).unique(dim=0)) == drawn
    assert all(torch.equal(noise[t], noise[t - t % hold]) for t in range(7))
    assert len(noise[0].unique(dim=0)) == 4  # To each environment its own.
    assert not torch.equal(actor_of(model, hold, seed=1).noise(1, 4, LIKE)[0], noise[0])


def test_over_matrices_noise_has_the_policys_variance(model, seen):
    count = 20_000
    one = {"vector": seen["vector"][:1].expand(count, -1)}
    with torch.no_grad():
        actions, params, _ = model.draw(one, model.noise((count,), LIKE, seeded()))
    means, deviations = params[0].chunk(2)[0], params[0].chunk(2)[1].exp()
    torch.testing.assert_close(actions.mean(0), means, rtol=0, atol=4 * deviations.max() / 141)
    torch.testing.assert_close(actions.std(0), deviations, rtol=0.03, atol=0)


def test_several_policies_draw_what_each_would_alone(seen):
    torch.manual_seed(0)
    models = [made(), made()]
    alone = [actor_of(model, 3, seed) for seed, model in enumerate(models)]
    together = Several([actor_of(model, 3, seed) for seed, model in enumerate(models)])
    both = {"vector": torch.cat([seen["vector"], -seen["vector"]])}
    with torch.no_grad():
        noise = together.noise(4, 2 * ROWS, LIKE)
        found = together.drawing(2 * ROWS)(both, noise[3])
        for place, actor in enumerate(alone):
            share = {"vector": both["vector"][place * ROWS : (place + 1) * ROWS]}
            own = actor.drawing(ROWS)(share, actor.noise(4, ROWS, LIKE)[3])
            rows = slice(place * ROWS, (place + 1) * ROWS)
            assert torch.equal(found.actions[rows], own.actions)
            assert torch.equal(found.params[rows], own.params)
    assert found.values is None


@pytest.mark.parametrize(
    ("fields", "hold"),
    [
        ({}, 1),
        ({"use_sde": True}, 64),
        ({"use_sde": True, "sde_sample_freq": 4}, 4),
        ({"use_sde": True, "sde_sample_freq": 100}, 64),  # SB3 draws anew for every rollout.
        ({"sde_sample_freq": 4}, 1),
    ],
)
def test_how_long_noise_is_held(fields, hold):
    assert preset("Pendulum-v1", n_steps=64, **fields).noise_hold == hold


def test_discrete_actions_have_none():
    with pytest.raises(UserError, match="use_sde needs continuous actions"):
        made(actions=spaces.Discrete(3))


def test_a_frequency_of_nothing_is_refused():
    with pytest.raises(UserError, match="sde_sample_freq must be positive, or -1, got 0"):
        preset("Pendulum-v1", sde_sample_freq=0)


@pytest.mark.parametrize(
    ("frequency", "n_steps", "said"),
    [
        (-1, 128, "held for 128 steps, 64 before, since it is drawn anew for every rollout: "
         "sde_sample_freq 64 holds it for as long as before"),
        (-1, 32, "held for 32 steps, 64 before, since it is drawn anew for every rollout: it "
         "cannot be held longer than a rollout"),
        (8, 128, None),
    ],
)  # fmt: skip
def test_rescaling_says_what_another_rollout_does_to_exploration(frequency, n_steps, said):
    recipe = preset("Pendulum-v1", n_steps=64, use_sde=True, sde_sample_freq=frequency)
    found = [line for line in recipe.rescale(n_steps=n_steps).warnings if "use_sde" in line]
    assert found == ([] if said is None else [f"use_sde: exploration noise is {said}"])
