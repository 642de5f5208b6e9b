"""verl: dotted overrides of main_ppo, or its YAML. Batch sizes are prompts, over all devices.

data.train_batch_size prompts are generated with rollout.n responses each (trainer/ppo/
ray_trainer.py). actor.ppo_mini_batch_size is in prompts too: workers multiply it by rollout.n and
divide it by their number (workers/fsdp_workers.py, megatron_workers.py), so it is global.
ppo_micro_batch_size_per_gpu is in sequences, and must divide a device's share of a mini batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from isobatch.errors import UserError
from isobatch.language.batch import SequenceBatch
from isobatch.language.library import (
    Count,
    Learner,
    Library,
    Setup,
    largest_divisor,
    times,
)
from isobatch.language.settings import Settings
from isobatch.language.words import Given
from isobatch.scaling.limits import Caution

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
PROMPTS, SAMPLES = "data.train_batch_size", f"{ROLLOUT}.n"
MINI, MICRO = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
EPOCHS, NODES, GPUS = f"{ACTOR}.ppo_epochs", "trainer.nnodes", "trainer.n_gpus_per_node"
GROUPED = ("grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "grpo_passk", "gpg",
           "rloo_vectorized", "grpo_vectorized")  # fmt: skip
LEAVE_ONE_OUT = ("rloo", "rloo_vectorized")
WHITENED = ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators whose advantages are normalised over all sequences (trainer/ppo/core_algos.py)."""
SUPERVISED = ("model.", "optim.", "engine.")


class Verl(Library):
    """verl's PPO trainer, which GRPO, RLOO and others are advantage estimators of."""

    name = "verl"
    title = "verl"
    per_device = False
    programs = r"(verl\.trainer\.main_ppo|\bmain_dapo)$"
    expected = "verl.trainer.main_ppo"
    read_keys = (PROMPTS, SAMPLES, MINI, MICRO, EPOCHS, NODES, GPUS, f"{ACTOR}.optim.lr")

    def settings(self, given: Given) -> Settings:
        """Return the settings; those of supervised fine-tuning have no actor."""
        settings = super().settings(given)
        ours = any(name.startswith(("actor_rollout_ref.", "algorithm.")) for name in given.flat)
        if not ours and any(name.startswith(SUPERVISED) for name in given.flat):
            raise UserError(
                "verl: these are settings of supervised fine-tuning (model.*, optim.*); expected "
                "those of verl.trainer.main_ppo (actor_rollout_ref.*)"
            )
        return settings

    def read(self, settings: Settings) -> Setup:
        """Read the batch, both optimisers and what depends on the batch."""
        prompts, samples = settings.whole(PROMPTS), settings.whole(SAMPLES)
        mini = settings.whole(MINI)
        if prompts % mini:
            raise UserError(f"verl: {PROMPTS} {prompts} does not divide by {MINI} {mini}")
        ranks, devices = _ranks(settings), _devices(settings)
        dynamic = settings.flag(f"{ACTOR}.use_dynamic_bsz")
        micro = None if dynamic or MICRO not in settings else settings.whole(MICRO)
        batch = SequenceBatch(
            prompts, samples, mini * samples, settings.whole(EPOCHS), devices, ranks, micro
        )
        estimator = settings.text("algorithm.adv_estimator")
        sizes = {PROMPTS: prompts, SAMPLES: samples, MINI: mini, EPOCHS: batch.epochs}
        if micro is not None:
            sizes[MICRO] = micro
        sizes |= {NODES: settings.whole(NODES), GPUS: settings.whole(GPUS)}
        mode = settings.text(f"{ACTOR}.loss_agg_mode")
        return Setup(
            batch,
            _learner(settings, ACTOR, batch.minibatch, f"{ACTOR}.grad_clip"),
            sizes,
            critic=_critic(settings, samples) if estimator == "gae" else None,
            counts=_counts(settings),
            epochs=EPOCHS,
            samples=SAMPLES,
            group=f"algorithm.adv_estimator {estimator}" if estimator in GROUPED else "",
            own_sample=estimator not in LEAVE_ONE_OUT,
            over_batch=f"algorithm.adv_estimator {estimator}" if estimator in WHITENED else "",
            token_mean=f"{ACTOR}.loss_agg_mode {mode}" if mode == "token-mean" else "",
            part=micro,
            reference=_reference(settings),
            clip=f"{ACTOR}.clip_ratio {settings.number(f'{ACTOR}.clip_ratio'):g}",
            notes=_notes(settings, batch, mode),
        )

    def on_devices(self, settings: Settings, devices: int) -> dict[str, Any]:
        """Return the nodes, and a micro batch that divides a device's share of a mini batch."""
        per_node = settings.whole(GPUS)
        changes = (
            {NODES: devices // per_node} if devices % per_node == 0 else {NODES: 1, GPUS: devices}
        )
        setup = self.read(settings.over(changes))
        share, rest = divmod(setup.batch.minibatch, setup.batch.ranks)
        if rest:
            raise UserError(
                f"verl: a mini batch of {setup.batch.minibatch:,} sequences ({MINI} x rollout.n) "
                f"does not divide by {setup.batch.ranks} data-parallel ranks"
            )
        micro = setup.batch.micro
        if micro is not None and share % micro:
            changes[MICRO] = largest_divisor(share, micro)
        return changes

    def instead(self, settings: Settings, ratio: Fraction) -> dict[str, Any]:
        """Return prompts and mini batch that grow with the devices."""
        own = "critic.ppo_mini_batch_size"
        keys = (PROMPTS, MINI, *([own] if own in settings.given else []))
        return {key: times("verl", key, settings.whole(key), ratio) for key in keys}

    def paste(self, changes: Mapping[str, Any]) -> str:
        """Return overrides, a line each."""
        return " \\\n".join(f"{key}={_shown(value)}" for key, value in changes.items())


def _devices(settings: Settings) -> int:
    return settings.whole(NODES) * settings.whole(GPUS)


def _ranks(settings: Settings) -> int:
    """Return data-parallel ranks: devices, less those of one model or one sequence."""
    if settings.text(f"{ACTOR}.strategy") == "megatron":
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size",
                 "context_parallel_size")  # fmt: skip
        keys = [f"{ACTOR}.megatron.{size}" for size in sizes]
    else:
        keys = [f"{ACTOR}.ulysses_sequence_parallel_size"]
    devices, split = _devices(settings), 1
    for key in keys:
        split *= settings.whole(key)
    if devices % split:
        raise UserError(f"verl: {devices} devices do not divide by {' x '.join(keys)} = {split}")
    return devices // split


def _learner(settings: Settings, table: str, minibatch: int, bound: str) -> Learner:
    kind = str(settings.value(f"{table}.optim.optimizer") or "adam").lower()
    clip = settings.number(bound)
    first, second = settings.numbers(f"{table}.optim.betas")
    decay = f"{table}.optim.weight_decay"
    return Learner(
        minibatch,
        settings.whole(f"{table}.ppo_epochs"),
        "adam" if kind.startswith("adam") else kind,
        {
            "learning_rate": f"{table}.optim.lr",
            "adam_beta1": f"{table}.optim.betas",
            "adam_beta2": f"{table}.optim.betas",
            "max_grad_norm": bound,
        },
        {
            "learning_rate": settings.number(f"{table}.optim.lr"),
            "adam_beta1": first,
            "adam_beta2": second,
            "max_grad_norm": clip or None,
        },
        (decay, settings.number(decay)),
    )


def _critic(settings: Settings, samples: int) -> Learner:
    mini = settings.whole("critic.ppo_mini_batch_size") * samples
    return _learner(settings, "critic", mini, "critic.grad_clip")


def _counts(settings: Settings) -> tuple[Count, ...]:
    """Return warm-up and budget, where they are counted in updates.

    verl's schedulers step once per iteration (update_actor), so both count iterations.
    """
    keys = (f"{ACTOR}.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps",
            "trainer.total_training_steps")  # fmt: skip
    found = [(key, settings.count(key)) for key in keys if key in settings.given]
    return tuple(Count(key, value, iterations=True) for key, value in found if value)


def _reference(settings: Settings) -> str:
    if settings.flag(f"{ACTOR}.use_kl_loss"):
        return f"{ACTOR}.kl_loss_coef {settings.number(f'{ACTOR}.kl_loss_coef'):g}"
    if settings.flag("algorithm.use_kl_in_reward"):
        coefficient = settings.number("algorithm.kl_ctrl.kl_coef")
        return f"algorithm.kl_ctrl.kl_coef {coefficient:g}"
    return ""


def _notes(settings: Settings, batch: SequenceBatch, mode: str) -> tuple[Caution, ...]:
    notes = []
    if mode == "seq-mean-token-sum-norm":
        notes.append(
            Caution(
                f"{ACTOR}.loss_agg_mode {mode} sums over the sequences of a micro batch: the "
                "gradient grows with the micro batch (Adam is blind to that, grad_clip is not)"
            )
        )
    if batch.micro is not None and batch.per_rank % batch.micro:
        notes.append(
            Caution(
                f"verl will not start: {batch.per_rank:g} sequences of a mini batch per "
                f"data-parallel rank do not divide by {MICRO} {batch.micro}"
            )
        )
    return tuple(notes)


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else str(value)
