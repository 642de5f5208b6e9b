"""Per-sample gradients are those of single backward passes, and sketches keep what they promise."""

import pytest
import torch
from hand_made import PLAIN, begin, experience

from isobatch import envs, losses
from isobatch.algos.gathering import Gathering
from isobatch.algos.ppo import terms
from isobatch.noise.samples import Loss, norms, output_of, per_sample
from isobatch.presets import preset
from isobatch.probe.gradients import Sketch, directions
from isobatch.recipe import Recipe
from isobatch.state import TrainState


def begun(recipe: Recipe) -> TrainState:
    env = envs.make(recipe, [1])
    try:
        layouts = env.observation_layout, env.action_layout
    finally:
        env.close()
    return TrainState.begin(recipe, *layouts, torch.device("cpu"))


@pytest.mark.parametrize("of", ["policy", "value"])
@pytest.mark.parametrize("architecture", ["dual", "shared", "detach"])
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_they_are_those_of_single_backward_passes(actions, architecture, of):
    state = begin(PLAIN.replace(architecture=architecture), actions)
    rollout = experience(state)
    observation, choices = {"vector": rollout.observations["vector"][0]}, rollout.actions[0]
    output = output_of(state.model, of)
    found = torch.cat(list(per_sample(output, observation, choices)))
    for k in range(len(choices)):
        one = {"vector": observation["vector"][k : k + 1]}
        torch.testing.assert_close(
            found[k], slope(output, output(one, choices[k : k + 1])[0]), atol=1e-6, rtol=1e-5
        )


def slope(output: torch.nn.Module, value: torch.Tensor) -> torch.Tensor:
    """Differentiate by all the parameters a value depends on."""
    slopes = torch.autograd.grad(value, list(output.parameters()), allow_unused=True)
    return torch.cat([each.flatten() for each in slopes if each is not None])


@pytest.mark.parametrize("objective", ["clip", "kl", "pg"])
def test_scaled_by_advantages_their_mean_is_the_gradient_training_takes(objective):
    """The policy's loss at ratio 1, whichever it is, and the value loss."""
    recipe = PLAIN.replace(objective=objective)
    state = begin(recipe)
    rollout = experience(state)
    advantages = torch.randn(rollout.rewards.shape, generator=torch.Generator().manual_seed(2))
    targets = advantages + rollout.values[:-1]
    gather = Gathering(state, rollout, advantages, targets, {"clip_range": 0.2})
    samples = gather(torch.arange(advantages.numel()))
    policy, _ = terms(state.model, samples, recipe.objective, state.model.distribution, False)
    value = losses.value_loss(state.model(samples.observation)[1], samples.targets)
    wanted: dict[Loss, torch.Tensor] = {"policy": policy, "value": value}
    for of, loss in wanted.items():
        output = output_of(state.model, of)
        found = directions(output, {"vector": rollout.observations["vector"][:-1]}, rollout.actions)
        mean = torch.einsum("tn,tnp->p", -advantages, found.vectors) / advantages.numel()
        torch.testing.assert_close(mean, slope(output, loss.mean()), atol=1e-6, rtol=1e-4)


def test_images_too():
    recipe = preset("StarpilotHard-v0", n_envs=2, n_steps=2, n_minibatches=1)
    state = begun(recipe)
    generator = torch.Generator().manual_seed(3)
    image = torch.randint(256, (3, 3, 64, 64), generator=generator, dtype=torch.uint8)
    actions = torch.tensor([[0], [7], [14]])
    output = output_of(state.model, "policy")
    found = torch.cat(list(per_sample(output, {"image": image}, actions)))
    assert found.shape == (3, 625_999)
    value = output({"image": image[1:2]}, actions[1:2])[0]
    torch.testing.assert_close(found[1], slope(output, value), atol=1e-6, rtol=1e-3)
    expected = found.norm(dim=1)
    torch.testing.assert_close(
        norms(output, {"image": image}, actions), expected, atol=0, rtol=1e-3
    )


def test_of_a_q_network_the_value_of_the_action_taken():
    state = begun(preset("CartPole-v1", "pqn"))
    actions = torch.tensor([[0], [1]])
    observation = {"vector": torch.randn(2, 4)}
    output = output_of(state.model, "value")
    found = torch.cat(list(per_sample(output, observation, actions)))
    value = state.model({"vector": observation["vector"][1:]})[0, 1]
    torch.testing.assert_close(found[1], slope(state.model, value), atol=1e-6, rtol=1e-4)


def test_a_sketch_keeps_inner_products_as_well_as_it_says():
    generator = torch.Generator().manual_seed(4)
    vectors = torch.randn(40, 20_000, generator=generator)
    vectors[1] = vectors[0] + 0.1 * vectors[1]
    sketch = Sketch(20_000, 1024)
    small = sketch(vectors)
    assert small.shape == (40, 1024)
    exact = vectors.square().sum(1)
    off = small.square().sum(1) / exact - 1
    assert 0.3 * sketch.error < float(off.std()) < 1.7 * sketch.error
    assert float(off.mean().abs()) < sketch.error
    cosine = float(small[0] @ small[1] / small[0].norm() / small[1].norm())
    assert cosine == pytest.approx(1 / 1.01**0.5, abs=0.02)


def test_directions_too_large_to_keep_are_sketched_with_exact_norms(monkeypatch):
    monkeypatch.setattr("isobatch.probe.gradients.KEPT_BYTES", 1 << 12)
    state = begun(preset("CartPole-v1"))
    actions = torch.zeros(2, 3, 1, dtype=torch.long)
    observation = {"vector": torch.randn(2, 3, 4)}
    told = []
    found = directions(output_of(state.model, "policy"), observation, actions, told.append)
    monkeypatch.undo()
    exact = directions(output_of(state.model, "policy"), observation, actions)
    assert found.sketch is not None
    assert found.vectors.shape == (2, 3, 512)
    assert found.n_parameters == exact.vectors.shape[2] == 4610
    torch.testing.assert_close(found.squares, exact.squares)
    assert sum(told) == 6


def test_norms_of_a_network_that_vmap_cannot_take():
    """One of the user's own that branches on its data: row by row, the same numbers."""

    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 1, bias=False)

        def forward(self, observation, actions):
            values = self.linear(observation["vector"]).squeeze(1)
            return 2 * values if values.sum() > -1e9 else values

    vectors = torch.tensor([[3.0, 0.0, 4.0], [0.0, 1.0, 0.0]])
    found = norms(Branching(), {"vector": vectors}, torch.zeros(2, 1))
    torch.testing.assert_close(found, torch.tensor([10.0, 2.0]))
