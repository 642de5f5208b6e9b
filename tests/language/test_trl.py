import math

import pytest

from isobatch import language
from isobatch.errors import UserError

# examples/scripts/gspo.py's command, on the eight processes of its accelerate configuration.
GSPO = {
    "algo": "grpo", "per_device_train_batch_size": 8, "num_generations": 8,
    "gradient_accumulation_steps": 2, "steps_per_generation": 8, "loss_type": "grpo",
    "learning_rate": 1e-5, "num_processes": 8,
}  # fmt: skip
ON_POLICY = {"algo": "grpo", "gradient_accumulation_steps": 8, "num_processes": 8}


def test_sizes_are_completions_per_device_and_both_steps_count_micro_batches():
    batch = language.read("trl", GSPO)
    # 8 x 8 completions a micro batch; 8 of them are generated, 2 make a gradient step.
    assert (batch.sequences, batch.prompts, batch.samples) == (512, 64, 8)
    assert (batch.minibatch, batch.steps_per_iteration) == (128, 4)


def test_a_gradient_step_over_several_generations_is_one_iteration():
    # TRL's paper index, for DeepSeek-R1: meant as 8192 generated, 512 in a gradient step; the 16
    # count micro batches, so 64 are generated, 8 times for every gradient step.
    given = {
        "algo": "grpo", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 128,
        "steps_per_generation": 16, "num_generations": 16,
    }  # fmt: skip
    batch = language.read("trl", given)
    assert (batch.sequences, batch.minibatch, batch.steps_per_iteration) == (512, 512, 1)


def test_devices_alone_make_the_batch_larger():
    resized = language.rescale("trl", ON_POLICY, devices=16)
    assert (resized.factors.opt, resized.factors.iter) == (0.5, 0.5)
    assert resized.changes == {"num_processes": 16, "learning_rate": 1.41421e-06}
    assert resized.moved[0].new == pytest.approx(1e-6 * math.sqrt(2))
    said = " ".join(resized.text().split())
    assert "per device: 16 devices instead of 8 alone make the batch 2 times as large" in said
    assert "--keep batch holds it (gradient_accumulation_steps=4)" in said


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        (ON_POLICY, {"gradient_accumulation_steps": 4}),
        (GSPO, {"gradient_accumulation_steps": 1, "steps_per_generation": 4}),
        (ON_POLICY | {"gradient_accumulation_steps": 1}, {"per_device_train_batch_size": 4}),
    ],
)
def test_keep_batch_holds_it(given, changes):
    resized = language.rescale("trl", given, devices=16, keep="batch")
    assert (resized.factors.opt, resized.factors.iter) == (1, 1)
    assert resized.changes == {**changes, "num_processes": 16}


def test_generation_batch_size_is_global():
    given = ON_POLICY | {"generation_batch_size": 2048}
    batch = language.read("trl", given)
    assert (batch.sequences, batch.minibatch) == (2048, 512)
    resized = language.rescale("trl", given, devices=16)
    # Gradient steps grow with the devices, what is generated does not.
    assert (resized.factors.opt, resized.factors.iter) == (0.5, 1)


def test_the_default_loss_is_divided_by_the_tokens_of_a_generation():
    given = ON_POLICY | {"steps_per_generation": 32}
    resized = language.rescale("trl", given, devices=16)
    assert any("gradients are 0.25 times the mean" in line for line in resized.warnings)


def test_reference_policies_are_copied_after_as_many_sequences():
    given = ON_POLICY | {"sync_ref_model": True, "beta": 0.04, "warmup_steps": 10}
    resized = language.rescale("trl", given, devices=4)
    moved = {each.key: each.new for each in resized.moved}
    # Half the batch: c_opt 2, and 512 gradient steps become 1024.
    assert moved["ref_model_sync_steps"] == 1024
    assert moved["warmup_steps"] == 20
    assert moved["learning_rate"] == pytest.approx(1e-6 / math.sqrt(2))


@pytest.mark.parametrize(
    ("accumulated", "parts", "steps"), [(1, 2, 2), (4, 2, 1), (2, 4, 2), (16, 1, 1)]
)
def test_ppo_steps_once_per_accumulated_micro_batches(accumulated, parts, steps):
    given = {
        "algo": "ppo", "per_device_train_batch_size": 8, "num_processes": 2,
        "gradient_accumulation_steps": accumulated, "num_mini_batches": parts,
    }  # fmt: skip
    batch = language.read("trl", given)
    assert batch.steps_per_epoch == steps
    assert (batch.sequences, batch.epochs) == (16 * accumulated, 4)


def test_flags_of_a_command_are_read(tmp_path):
    command = (
        "accelerate launch --num_processes 8 --config_file zero3.yaml examples/scripts/rloo_vlm.py "
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 2 "
        "--lora_target_modules q_proj v_proj --log_completions"
    )
    given = language.parse(command.split())
    assert given.flat["lora_target_modules"] == ["q_proj", "v_proj"]
    assert given.flat["log_completions"] is True
    batch = language.rescale("trl", given, devices=8).old.batch
    assert (batch.sequences, batch.prompts, batch.devices) == (64, 32, 8)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rate": 1e-5}, "which trainer"),
        ({"packing": True}, "a setting of SFT"),
        ({"algo": "dpo"}, "algo must be grpo, rloo or ppo"),
        (ON_POLICY | {"num_generations": 7}, "do not divide by num_generations 7"),
        (GSPO | {"steps_per_generation": 3}, "one must divide the other"),
        (GSPO | {"generation_batch_size": 64}, "not both"),
    ],
)
def test_what_cannot_be_read_is_one_line(given, said):
    with pytest.raises(UserError, match=said):
        language.rescale("trl", given, devices=16)


def test_another_trainers_command_is_refused():
    given = language.parse(["trl", "dpo", "--learning_rate", "1e-5"])
    with pytest.raises(UserError, match="trl dpo is no trainer that is read here"):
        language.rescale("trl", given, devices=2)


def test_assumed_devices_are_said():
    resized = language.rescale("trl", {"algo": "grpo"}, devices=2)
    assert any("one device is assumed" in line for line in resized.warnings)


def test_two_configurations(tmp_path):
    after = GSPO | {"per_device_train_batch_size": 4, "learning_rate": 1e-5}
    resized = language.rescale("trl", GSPO, after=after, whole=True)
    assert (resized.factors.opt, resized.factors.iter) == (2, 2)
    assert any("learning_rate 1e-05 is asked for" in line for line in resized.warnings)
