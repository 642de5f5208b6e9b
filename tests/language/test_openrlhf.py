import math

import pytest

from isobatch import language
from isobatch.errors import UserError

# examples/scripts/train_prorlv2_math_hybrid_engine.sh.
PRORL = {
    "rollout.batch_size": 512, "rollout.n_samples_per_prompt": 16, "train.batch_size": 1024,
    "train.dynamic_batch_enable": True, "algo.advantage.estimator": "reinforce_baseline",
    "actor.num_nodes": 1, "actor.num_gpus_per_node": 8, "actor.adam.lr": 1e-6,
}  # fmt: skip
# examples/scripts/train_dapo_ray_hybrid_engine.sh.
DAPO = {
    "rollout.batch_size": 128, "rollout.n_samples_per_prompt": 8, "train.batch_size": 128,
    "train.micro_batch_size": 8, "algo.advantage.estimator": "group_norm",
    "actor.num_nodes": 1, "actor.num_gpus_per_node": 8, "ref.num_nodes": 1,
    "ref.num_gpus_per_node": 8, "actor.adam.lr": 5e-7,
}  # fmt: skip


def test_rollouts_are_prompts_and_gradient_steps_are_sequences():
    batch = language.read("openrlhf", PRORL)
    # 512 x 16 = 8192 responses, 1024 in a gradient step.
    assert (batch.sequences, batch.minibatch, batch.steps_per_iteration) == (8192, 1024, 8)
    assert (batch.micro, batch.per_rank) == (None, 128)
    batch = language.read("openrlhf", DAPO)
    assert (batch.sequences, batch.minibatch, batch.steps_per_iteration) == (1024, 128, 8)


def test_devices_alone_change_no_batch():
    resized = language.rescale("openrlhf", DAPO, devices=32)
    assert (resized.factors.opt, resized.factors.iter) == (1, 1)
    # 128 / 32 = 4 sequences on a device, where a pass had 8.
    assert resized.changes == {
        "actor.num_nodes": 4, "ref.num_nodes": 4, "train.micro_batch_size": 4,
    }  # fmt: skip
    assert "over all devices: 32 devices instead of 8 alone leave the batch" in " ".join(
        resized.text().split()
    )


def test_a_batch_that_grows_with_the_devices():
    resized = language.rescale("openrlhf", PRORL, devices=32, keep="per-device")
    assert (resized.factors.opt, resized.factors.iter) == (0.25, 0.25)
    assert resized.changes == {
        "rollout.batch_size": 2048, "train.batch_size": 4096, "actor.num_nodes": 4,
        "actor.adam.lr": 2e-6,
    }  # fmt: skip


def test_critics_and_averages_move_too():
    given = {"train.enable_ema": True, "train.batch_size": 128, "rollout.batch_size": 1024}
    resized = language.rescale("openrlhf", given, after={"train.batch_size": 256})
    assert (resized.factors.opt, resized.factors.iter) == (0.5, 1)
    moved = {each.key: each.new for each in resized.moved}
    assert moved["actor.adam.lr"] == pytest.approx(1e-6 * math.sqrt(2))
    assert moved["critic.adam.lr"] == pytest.approx(9e-6 * math.sqrt(2))
    # Centre of mass 1 / 0.008 - 1 = 124 steps, half as many: decay 1 - 1/63.
    assert moved["train.ema_beta"] == pytest.approx(1 - 1 / 63)


def test_asynchronous_training_is_late():
    given = PRORL | {"train.async_enable": True, "train.async_queue_size": 2}
    resized = language.rescale("openrlhf", given, after={"rollout.batch_size": 1024})
    assert resized.old.batch.staleness == 2
    (said,) = [line for line in resized.warnings if line.startswith("train.async_queue_size")]
    assert "is now 32,768 sequences instead of 16,384" in said


def test_sequence_parallel_devices_share_sequences():
    given = PRORL | {"ds.ring_attn_size": 2}
    assert language.read("openrlhf", given).ranks == 4


def test_muon_has_no_rule():
    given = PRORL | {"actor.optim": "muon"}
    resized = language.rescale("openrlhf", given, after={"train.batch_size": 512})
    assert resized.moved == []
    assert "muon has no rule: actor.muon.lr stays as it was" in resized.warnings


def test_arrays_of_a_script_are_read(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "ROLLOUT_ARGS=(\n   --rollout.batch_size 128\n   # --rollout.batch_size 4\n"
        "   --rollout.n_samples_per_prompt 8\n   --train.batch_size ${SIZE:-1024}\n)\n"
        'OTHER=(\n   --actor.num_gpus_per_node 4\n   --algo.advantage.estimator "rloo"\n)\n'
        'ray job submit --address="http://127.0.0.1:8265" \\\n'
        "   -- python3 -m openrlhf.cli.train_ppo_ray \\\n   ${ROLLOUT_ARGS[@]} \\\n   ${OTHER[@]}\n"
    )
    given = language.parse([str(script)])
    batch = language.rescale("openrlhf", given, devices=4).old.batch
    assert (batch.sequences, batch.minibatch, batch.devices) == (1024, 1024, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train_batch_size": 128}, r"an earlier version; now train\.batch_size"),
        ({"model.beta": 0.1, "train.batch_size": 128}, "SFT, DPO or a reward model"),
        (PRORL | {"train.batch_size": 1000}, "do not divide into gradient steps of 1,000"),
        (DAPO | {"actor.num_gpus_per_node": 7}, "does not divide by 14 data-parallel ranks"),
    ],
)
def test_what_cannot_be_read_is_one_line(given, said):
    with pytest.raises(UserError, match=said):
        language.rescale("openrlhf", given, devices=14)
