import copy
from typing import Any

import pytest
import torch
from hand_made import ENVS, OBSERVATIONS, PLAIN, STEPS, begin, experience, learn, made, weights

from isobatch.algos.estimates import advantages_and_targets
from isobatch.algos.ppg import Ppg
from isobatch.algos.ppo import Ppo
from isobatch.errors import UserError
from isobatch.update.optimize import FlatParameters, make_optimizer

RECIPE = PLAIN.replace(
    algo="ppg", n_minibatches=2, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1,
    aux_segments=ENVS * 2,
)  # fmt: skip


def ppg(recipe, tmp_path, state=None, chunk_size=1000):
    notes = []
    learner = made(
        Ppg, state or begin(recipe), recipe, chunk_size, directory=tmp_path, note=notes.append
    )
    return learner, notes


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
@pytest.mark.parametrize("architecture", ["dual", "shared", "detach"])
def test_without_auxiliary_epochs_it_is_ppo(architecture, optimizer, tmp_path):
    """To the bit; with Adam to rounding, since its kernel rounds a vector's last entries otherwise.

    They are others here, where the auxiliary head's weights follow.
    """
    settings = {"architecture": architecture, "n_epochs": 3, "optimizer": optimizer}
    phasic, _ = ppg(RECIPE.replace(n_aux_epochs=0, **settings), tmp_path)
    plain = made(Ppo, begin(PLAIN.replace(n_minibatches=2, **settings)), phasic.state.recipe, 1000)
    tolerance = 0.0 if optimizer == "rmsprop" else 1e-5
    for seed in range(5):
        rollout = experience(plain.state, seed)
        mine, theirs = learn(phasic, rollout), learn(plain, rollout)
        # The norm's last bit: the auxiliary head's zeros are summed too.
        assert mine.pop("grad_norm") == pytest.approx(theirs.pop("grad_norm"), rel=1e-6 + tolerance)
        same = {
            name: pytest.approx(value, rel=tolerance, abs=tolerance * 0.1)
            for name, value in theirs.items()
        }
        assert {name: mine[name] for name in theirs} == same
    state = plain.state.model.state_dict()
    for name, expected in state.items():
        found = phasic.state.model.state_dict()[name]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def auxiliary_loss(model, before, rollouts, targets, clone_coef=1.0):
    """The auxiliary loss as its paper writes it, over all rows of the phase."""
    vectors = torch.cat([r.observations["vector"][:-1][r.valid] for r in rollouts])
    logits, values, auxiliary = model.with_auxiliary({"vector": vectors})
    with torch.no_grad():
        old = torch.distributions.Categorical(logits=before({"vector": vectors})[0])
    new = torch.distributions.Categorical(logits=logits)
    clone = torch.distributions.kl_divergence(old, new)
    true, joint = 0.5 * (values - targets).square(), 0.5 * (auxiliary - targets).square()
    return (joint + true + clone_coef * clone).mean()


@pytest.mark.parametrize("architecture", ["dual", "shared", "detach"])
def test_the_auxiliary_phase_is_the_papers(architecture, tmp_path):
    recipe = RECIPE.replace(architecture=architecture, n_aux_epochs=3, aux_learning_rate=0.5)
    state = begin(recipe)
    learner, _ = ppg(recipe, tmp_path, state)
    first, second = (experience(state, seed) for seed in (0, 1))
    learn(learner, first)
    twin = begin(recipe)
    twin.load(copy.deepcopy(state.tensors()), state.numbers())
    policy_phase = made(Ppo, twin, recipe, 1000)
    statistics = learn(learner, second)
    learn(policy_phase, second)
    # By hand: the same policy phase, then three steps of all rows at once.
    model = policy_phase.state.model
    targets = torch.cat([value_targets(recipe, rollout) for rollout in (first, second)])
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        loss = auxiliary_loss(model, before, [first, second], targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(
            state.model.state_dict()[name], weight, rtol=0, atol=1e-4, msg=name
        )
    assert losses[-1] < losses[0]
    told = sum(statistics[f"aux_{name}"] for name in ("value_loss", "true_value_loss", "clone_kl"))
    assert told == pytest.approx(sum(losses) / 3, rel=1e-3)
    assert statistics["aux_rows"] == first.n_valid + second.n_valid
    assert statistics["aux_grad_steps"] == 3


def value_targets(recipe, rollout):
    return advantages_and_targets(begin(recipe), rollout)[1][rollout.valid]


def test_the_optimisers_are_apart_and_each_is_kept(tmp_path):
    recipe = RECIPE.replace(optimizer="adam")
    learner, _ = ppg(recipe, tmp_path)
    for seed in range(4):
        learn(learner, experience(learner.state, seed))
    kept = learner.state.tensors()
    assert int(kept["optimizer.count"]) == 4 * 2
    assert int(kept["auxiliary_optimizer.count"]) == 2
    again = begin(recipe)
    again.load(kept, learner.state.numbers())
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, kept[name]), name


def test_phases_take_turns_and_say_how_far_they_are(tmp_path):
    learner, notes = ppg(RECIPE, tmp_path)
    rows = [learn(learner, experience(learner.state, seed)) for seed in range(5)]
    assert [row["phase_iteration"] for row in rows] == [1, 2, 1, 2, 1]
    assert ["aux_rows" in row for row in rows] == [False, True, False, True, False]
    assert all(row["phase_memory_bytes"] > 0 and row["phase_disk_bytes"] == 0 for row in rows)
    assert any("auxiliary epoch 1 of 1" in note for note in notes)
    assert learner.state.counters.grad_steps == 5 * 2  # Of the policy phases.


def test_a_resumed_phase_ends_when_it_would_have(tmp_path):
    first, _ = ppg(RECIPE, tmp_path)
    learn(first, experience(first.state))
    state = begin(RECIPE)
    state.load(first.state.tensors(), first.state.numbers())
    again, _ = ppg(RECIPE, tmp_path, state)
    rollout = experience(state, 1)
    assert learn(again, rollout)["aux_rows"] == rollout.n_valid


def test_the_average_begins_anew_after_each_auxiliary_phase(tmp_path):
    learner, _ = ppg(RECIPE.replace(algo="ppg-ewma", proximal_decay=0.9), tmp_path)
    state: Any = learner.state
    proximal, actor = state.proximal, state.model.actor
    learn(learner, experience(learner.state))
    assert proximal.weight > 1
    learn(learner, experience(learner.state, 1))
    assert proximal.weight == 1
    for average, weight in zip(proximal.module.parameters(), actor.parameters(), strict=True):
        assert torch.equal(average, weight)


def test_minibatches_hold_whole_segments(tmp_path):
    recipe = RECIPE.replace(aux_segments=3, n_aux_epochs=2)
    learner, _ = ppg(recipe, tmp_path)
    sizes = []
    stepper = learner._stepper(recipe)
    gradient = stepper.gradient

    def spy(rows, gather):
        sizes.append(len(rows))
        return gradient(rows, gather)

    stepper.gradient = spy
    rollouts = [experience(learner.state, seed) for seed in range(2)]
    for rollout in rollouts:
        statistics = learn(learner, rollout)
    lengths = torch.cat([rollout.valid.sum(0) for rollout in rollouts])
    assert statistics["aux_grad_steps"] == len(sizes) == 2 * 3  # 8 segments by 3, twice.
    assert sum(sizes[:3]) == sum(sizes[3:]) == int(lengths.sum())
    assert all(size >= 2 * int(lengths.min()) for size in sizes)
    assert [PLAIN.phasic.segments(n_envs) for n_envs in (1, 4, 16, 64, 256)] == [1, 1, 1, 4, 16]


def test_a_phase_on_disk_teaches_what_one_in_memory_does(tmp_path):
    recipe = RECIPE.replace(aux_segments=3, n_aux_epochs=2)
    held, _ = ppg(recipe.replace(phase_memory="1GB"), tmp_path)
    spilled, _ = ppg(recipe.replace(phase_memory="1kB"), tmp_path)
    for seed in range(2):
        rollout = experience(held.state, seed)
        rows = learn(held, rollout), learn(spilled, rollout)
    assert rows[0]["phase_disk_bytes"] == 0 < rows[1]["phase_disk_bytes"]
    assert torch.equal(weights(held.state), weights(spilled.state))
    assert not (tmp_path / "phase.bin").exists()


def test_chunks_do_not_change_the_auxiliary_phase(tmp_path):
    whole, _ = ppg(RECIPE, tmp_path)
    chunked, _ = ppg(RECIPE, tmp_path, chunk_size=5)
    for seed in range(2):
        rollout = experience(whole.state, seed)
        learn(whole, rollout)
        learn(chunked, rollout)
    torch.testing.assert_close(weights(chunked.state), weights(whole.state), rtol=0, atol=1e-5)


def test_value_epochs_apart_come_first_with_an_optimiser_of_their_own(tmp_path):
    """E_v of the value loss alone, then E_pi of the policy's alone (dual: they share nothing)."""
    recipe = PLAIN.replace(n_epochs=2, n_value_epochs=5, optimizer="adam", architecture="dual")
    state = begin(recipe)
    rollout = experience(state)
    twin = begin(recipe)
    statistics = learn(made(Ppo, state, recipe, 1000), rollout)
    assert (state.counters.epochs, state.counters.grad_steps) == (7, 7)
    joint = made(Ppo, twin, recipe.replace(n_value_epochs=0), 1000)
    learn(joint, rollout)
    # The policy sees the same two epochs as when both are trained at once ...
    for mine, theirs in zip(
        state.model.actor.parameters(), twin.model.actor.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    # ... and the value function five instead of two.
    value = begin(recipe)
    parameters = FlatParameters(value.model)
    optimizer = make_optimizer(parameters, recipe.optimizer)
    targets = value_targets(recipe, rollout)
    vectors = rollout.observations["vector"][:-1][rollout.valid]
    for _ in range(5):
        parameters.gradient.zero_()
        error = value.model({"vector": vectors})[1] - targets
        (0.5 * 0.5 * error.square().mean()).backward()
        optimizer.step(recipe.optimizer, recipe.optimizer.learning_rate)
    torch.testing.assert_close(
        state.model.value_head.weight, value.model.value_head.weight, rtol=0, atol=1e-5
    )
    assert statistics["value_loss"] > 0


def test_equal_epochs_are_trained_at_once():
    assert not PLAIN.replace(n_epochs=3, n_value_epochs=3).trains_value_apart
    assert begin(PLAIN.replace(n_epochs=3, n_value_epochs=3)).value_optimizer is None


def test_a_memory_too_small_for_a_segment_is_refused():
    segment = STEPS * 3 * 4
    Ppg.check(RECIPE.replace(phase_memory=f"{segment}B"), OBSERVATIONS)
    with pytest.raises(UserError, match=r"phase_memory 191B.*16 steps of 12 bytes: 192 bytes"):
        Ppg.check(RECIPE.replace(phase_memory=f"{segment - 1}B"), OBSERVATIONS)
