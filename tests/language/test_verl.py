import math

import pytest

from isobatch import language
from isobatch.errors import UserError

ACTOR = "actor_rollout_ref.actor"
# examples/grpo_trainer/run_qwen3-8b.sh, the settings that matter.
GRPO = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 1024,
    "actor_rollout_ref.rollout.n": 5,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32,
    f"{ACTOR}.use_kl_loss": True,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
}


def test_sizes_are_prompts_and_the_mini_batch_is_multiplied_by_n():
    batch = language.read("verl", GRPO)
    # 1024 prompts x 5 responses; 256 x 5 in a gradient step, 1280 / 8 on a device.
    assert (batch.prompts, batch.samples, batch.sequences) == (1024, 5, 5120)
    assert (batch.minibatch, batch.steps_per_iteration) == (1280, 4)
    assert (batch.per_rank, batch.micro) == (160, 32)


def test_defaults_are_the_librarys():
    batch = language.read("verl", {})
    assert (batch.prompts, batch.samples, batch.minibatch) == (1024, 1, 256)
    assert (batch.epochs, batch.devices) == (1, 8)


def test_devices_alone_change_no_batch_but_the_micro_batch_must_divide():
    resized = language.rescale("verl", GRPO, devices=16)
    assert (resized.factors.opt, resized.factors.iter) == (1, 1)
    # 1280 / 16 = 80 sequences on a device, which verl cannot cut into 32s; 20 is the largest.
    assert resized.changes == {"trainer.nnodes": 2, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 20}
    assert "over all devices: 16 devices instead of 8 alone leave the batch" in " ".join(
        resized.text().split()
    )


def test_a_batch_that_grows_with_the_devices_moves_the_step_size():
    resized = language.rescale("verl", GRPO, devices=16, keep="per-device")
    assert (resized.factors.opt, resized.factors.iter) == (0.5, 0.5)
    assert resized.changes == {
        "data.train_batch_size": 2048,
        f"{ACTOR}.ppo_mini_batch_size": 512,
        "trainer.nnodes": 2,
        f"{ACTOR}.optim.lr": 1.41421e-06,
    }
    assert resized.moved[0].new == pytest.approx(1e-6 * math.sqrt(2))


def test_a_smaller_mini_batch_alone_changes_c_opt():
    after = {f"{ACTOR}.ppo_mini_batch_size": 64}
    resized = language.rescale("verl", GRPO, after=after, betas=True, grad_norm=True)
    assert (resized.factors.opt, resized.factors.iter) == (4, 1)
    moved = {each.key: each.new for each in resized.moved}
    assert moved[f"{ACTOR}.optim.lr"] == pytest.approx(5e-7)  # / sqrt(4)
    # 0.9 ^ (1/4), 0.999 ^ (1/4); 1 x sqrt(4).
    assert moved[f"{ACTOR}.optim.betas"] == pytest.approx([0.9740037, 0.99974991])
    assert moved[f"{ACTOR}.grad_clip"] == pytest.approx(2)


def test_the_critic_has_its_own_mini_batch_and_step_size():
    given = {"critic.ppo_mini_batch_size": 128}
    after = {f"{ACTOR}.ppo_mini_batch_size": 1024}
    resized = language.rescale("verl", given, after=after)
    # The actor's 256 -> 1024: x sqrt(4); the critic's stays, as it is given.
    assert [each.key for each in resized.moved] == [f"{ACTOR}.optim.lr"]
    resized = language.rescale("verl", {}, after=after)
    moved = {each.key: each.new for each in resized.moved}
    assert moved == pytest.approx({f"{ACTOR}.optim.lr": 2e-6, "critic.optim.lr": 2e-5})


def test_warm_up_and_budget_count_iterations():
    given = GRPO | {"trainer.total_training_steps": 500, f"{ACTOR}.optim.lr_warmup_steps": 10}
    resized = language.rescale("verl", given, after={"data.train_batch_size": 2048})
    assert (resized.factors.opt, resized.factors.iter) == (1, 0.5)
    assert {each.key: each.new for each in resized.moved} == {
        "trainer.total_training_steps": 250,
        f"{ACTOR}.optim.lr_warmup_steps": 5,
    }


def test_other_samples_change_the_advantages_themselves():
    resized = language.rescale("verl", GRPO, after={"actor_rollout_ref.rollout.n": 10})
    (said,) = [line for line in resized.warnings if "rollout.n 5 -> 10" in line]
    # (1 - 1/10) / (1 - 1/5) = 1.125.
    assert "1.12 times" in said
    assert (resized.factors.opt, resized.factors.iter) == (0.5, 0.5)


def test_megatron_splits_models_over_devices():
    given = GRPO | {
        f"{ACTOR}.strategy": "megatron",
        f"{ACTOR}.megatron.tensor_model_parallel_size": 2,
        f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
    }
    assert language.read("verl", given).ranks == 2


def test_a_script_is_read_as_text(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\nset -x\nbsz=512\n# data.train_batch_size=1\nn=${N:-16}\n"
        "python3 -m verl.trainer.main_ppo \\\n    data.train_batch_size=${bsz} \\\n"
        "    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\\n"
        "    actor_rollout_ref.rollout.n=$n trainer.nnodes=${NODES} $@\n",
        encoding="utf-8",
    )
    given = language.parse([str(script)])
    assert given.flat["data.train_batch_size"] == "512"
    with pytest.raises(UserError, match=r"trainer.nnodes is '\$\{NODES\}', which is not computed"):
        language.rescale("verl", given, devices=8)
    given = language.parse([str(script), "trainer.nnodes=2"])
    batch = language.rescale("verl", given, devices=8).old.batch
    assert (batch.sequences, batch.minibatch, batch.devices) == (8192, 2048, 16)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model.partial_pretrain": "x", "optim.lr": 1e-5}, "supervised fine-tuning"),
        ({"data.train_batch_size": 1000}, "does not divide by"),
        ({"data.train_batch_size": 0}, "must be at least 1"),
        ({"data.train_batch_size": "many"}, "must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_one_line(given, said):
    with pytest.raises(UserError, match=said):
        language.rescale("verl", given, devices=16)


def test_another_program_is_refused(tmp_path):
    script = tmp_path / "sft.sh"
    script.write_text("torchrun -m verl.trainer.fsdp_sft_trainer data.train_batch_size=256\n")
    with pytest.raises(UserError, match="fsdp_sft_trainer is no trainer that is read here"):
        language.rescale("verl", language.parse([str(script)]), devices=2)


def test_unknown_keys_are_told():
    resized = language.rescale("verl", {"data.train_batchsize": 4, "x.y": 1}, devices=16)
    assert any("Did you mean data.train_batch_size?" in line for line in resized.warnings)
    assert any("not known of verl" in line and "x.y" in line for line in resized.warnings)
