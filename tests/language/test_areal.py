import math

import pytest
import yaml

from isobatch import language
from isobatch.errors import UserError

# examples/math/boba_grpo.yaml, the settings that matter.
BOBA = """
rollout: {max_head_offpolicyness: 4, consumer_batch_size: "${train_dataset.batch_size}"}
gconfig: {n_samples: 16}
actor:
  backend: "fsdp:d4p1t2"
  optimizer: {type: adam, lr: 1e-5, weight_decay: 0.01}
  ppo_n_minibatches: 4
  eps_clip: 0.4
  use_decoupled_loss: true
  reward_norm: {mean_level: group, std_level: group, group_size: "${gconfig.n_samples}"}
  adv_norm: {mean_level: batch, std_level: batch}
train_dataset: {batch_size: 32, type: rl}
"""
GIVEN = yaml.safe_load(BOBA)


def test_batches_are_prompts_cut_into_so_many_gradient_steps():
    batch = language.read("areal", GIVEN)
    # 32 x 16 = 512 responses in 4 gradient steps; 8 devices hold 4 copies of the model.
    assert (batch.sequences, batch.minibatch, batch.steps_per_iteration) == (512, 128, 4)
    assert (batch.devices, batch.ranks, batch.staleness) == (8, 4, 4)


def test_devices_alone_change_no_batch():
    resized = language.rescale("areal", GIVEN, devices=16)
    assert (resized.factors.opt, resized.factors.iter) == (1, 1)
    assert resized.changes == {"actor.backend": "fsdp:d8p1t2"}


def test_a_batch_that_grows_is_staler_in_sequences():
    resized = language.rescale("areal", GIVEN, devices=16, keep="per-device")
    assert (resized.factors.opt, resized.factors.iter) == (0.5, 0.5)
    assert resized.changes["train_dataset.batch_size"] == 64
    assert resized.moved[0].new == pytest.approx(1e-5 * math.sqrt(2))
    (said,) = [line for line in resized.warnings if "max_head_offpolicyness 4" in line]
    assert "4,096 sequences instead of 2,048 (the decoupled loss" in said
    assert said.endswith("2 would be as many")


def test_fewer_gradient_steps_are_larger():
    resized = language.rescale("areal", GIVEN, after={"actor.ppo_n_minibatches": 1})
    assert (resized.factors.opt, resized.factors.iter) == (0.25, 1)
    assert {each.key: each.new for each in resized.moved} == pytest.approx(
        {"actor.optimizer.lr": 2e-5}
    )


def test_a_critic_has_gradient_steps_of_its_own():
    given = GIVEN | {"critic": {"ppo_n_minibatches": 2, "optimizer": {"lr": 1e-4}}}
    resized = language.rescale("areal", given, after={"train_dataset.batch_size": 128})
    assert {each.key: each.new for each in resized.moved} == pytest.approx(
        {"actor.optimizer.lr": 2e-5, "critic.optimizer.lr": 2e-4}
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_dataset": {"type": "sft"}}, "type must be rl, got 'sft'"),
        ({"actor": {}}, "actor.backend must be given"),
        ({"actor": {"backend": "fsdp"}}, "must read like fsdp:d8p1t1"),
        ({"gconfig": {"n_samples": 0}}, "gconfig.n_samples must be at least 1"),
        ({"actor": GIVEN["actor"] | {"ppo_n_minibatches": 3}}, "do not divide by"),
        ({"actor": GIVEN["actor"] | {"backend": "megatron:(attn:d2p2t2|ffn:d1p2e4)"}}, "--after"),
    ],
)
def test_what_cannot_be_read_is_one_line(changes, said):
    with pytest.raises(UserError, match=said):
        language.rescale("areal", GIVEN | changes, devices=16)
