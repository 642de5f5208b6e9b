"""AReaL: the YAML of its PPO and GRPO experiments. Batch sizes are prompts, over all devices.

train_dataset.batch_size counts prompts of a training step, each with gconfig.n_samples responses
(trainer/rl_trainer.py); actor.ppo_n_minibatches is the number of gradient steps these are cut into,
by tokens (trainer/ppo/actor.py). rollout.max_head_offpolicyness bounds how many training steps a
response may be older than the policy (infra/staleness_manager.py); the devices that train are those
of actor.backend, others generate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from isobatch.errors import UserError, shown
from isobatch.language.batch import SequenceBatch
from isobatch.language.library import Count, Learner, Library, Setup, times
from isobatch.language.settings import Settings
from isobatch.language.words import Given
from isobatch.scaling.limits import Caution

PROMPTS, SAMPLES = "train_dataset.batch_size", "gconfig.n_samples"
PARTS, LAG, BACKEND = "actor.ppo_n_minibatches", "rollout.max_head_offpolicyness", "actor.backend"
CONSUMED = "rollout.consumer_batch_size"
LAYOUT = re.compile(r"d(\d+)((?:[ptce]\d+)*)")
OPTIMIZERS = {"adam": "adam", "adam_bf16": "adam", "sgd": "sgd"}


class Areal(Library):
    """AReaL's asynchronous PPO and GRPO."""

    name = "areal"
    title = "AReaL"
    per_device = False
    programs = r"(rl|grpo|ppo|train)\w*\.py$"
    expected = "a script that trains by PPO or GRPO"
    read_keys = (PROMPTS, SAMPLES, PARTS, LAG, BACKEND, "actor.optimizer.lr")

    def settings(self, given: Given) -> Settings:
        """Return the settings; those whose data are not for reinforcement learning are refused."""
        settings = super().settings(given)
        kind = settings.value("train_dataset.type")
        if kind not in (None, "rl"):
            raise UserError(f"areal: train_dataset.type must be rl, got {shown(kind)}")
        return settings

    def read(self, settings: Settings) -> Setup:
        """Read the batch, both optimisers and what depends on the batch."""
        prompts, samples = settings.whole(PROMPTS), settings.whole(SAMPLES)
        parts, lag = settings.whole(PARTS), settings.count(LAG)
        devices, ranks = _devices(settings)
        sequences = prompts * samples
        batch = SequenceBatch(
            prompts, samples, _cut(sequences, parts, PARTS), 1, devices, ranks, None, lag
        )
        sizes = {PROMPTS: prompts, SAMPLES: samples, PARTS: parts, LAG: lag,
                 BACKEND: settings.text(BACKEND)}  # fmt: skip
        critic = "critic.ppo_n_minibatches"
        step = _cut(sequences, settings.whole(critic), critic) if settings.has("critic") else 0
        grouped = _level(settings, "actor.reward_norm", "group")
        whitened = _level(settings, "actor.adv_norm", "batch")
        penalty = settings.number("actor.kl_ctl") if settings.has("ref") else 0.0
        return Setup(
            batch,
            _learner(settings, "actor", batch.minibatch),
            sizes,
            critic=_learner(settings, "critic", step) if step else None,
            counts=_counts(settings),
            samples=SAMPLES,
            staleness=LAG if lag else "",
            group="actor.reward_norm group" if grouped else "",
            own_sample=not settings.value("actor.reward_norm.mean_leave1out"),
            over_batch="actor.adv_norm batch" if whitened else "",
            reference=f"actor.kl_ctl {penalty:g}" if penalty else "",
            clip=f"actor.eps_clip {settings.number('actor.eps_clip'):g}",
            decoupled=settings.flag("actor.use_decoupled_loss"),
            notes=_notes(settings, batch),
        )

    def on_devices(self, settings: Settings, devices: int) -> dict[str, Any]:
        """Return the backend with more data-parallel ranks."""
        backend, (now, ranks) = settings.text(BACKEND), _devices(settings)
        if devices % (now // ranks):
            raise UserError(
                f"areal: {devices} devices do not divide by the {now // ranks} of one model copy "
                f"({BACKEND} {backend})"
            )
        if "|" in backend:
            raise UserError(
                f"areal: {BACKEND} {backend} has two layouts; say the new ones with --after "
                f"{BACKEND}=..."
            )
        wanted = devices * ranks // now
        changed = LAYOUT.sub(lambda match: f"d{wanted}{match[2]}", backend, count=1)
        if settings.whole(PROMPTS) % wanted:
            raise UserError(
                f"areal: {PROMPTS} {settings.whole(PROMPTS)} does not divide by {wanted} "
                "data-parallel ranks"
            )
        return {BACKEND: changed}

    def instead(self, settings: Settings, ratio: Fraction) -> dict[str, Any]:
        """Return prompts that grow with the devices, cut into as many gradient steps."""
        keys = [PROMPTS]
        if isinstance(settings.given.get(CONSUMED), int):
            keys.append(CONSUMED)
        return {key: times("areal", key, settings.whole(key), ratio) for key in keys}

    def paste(self, changes: Mapping[str, Any]) -> str:
        """Return overrides, a line each."""
        return " \\\n".join(f"{key}={value}" for key, value in changes.items())


def _devices(settings: Settings) -> tuple[int, int]:
    """Return (devices that train, data-parallel ranks) of a backend such as fsdp:d4p1t2."""
    if BACKEND not in settings:
        raise UserError(f"areal: {BACKEND} must be given, such as fsdp:d8p1t1")
    backend = settings.text(BACKEND)
    match = LAYOUT.search(backend.partition(":")[2])
    if match is None:
        raise UserError(f"areal: {BACKEND} must read like fsdp:d8p1t1, got {shown(backend)}")
    ranks, devices = int(match[1]), int(match[1])
    for name, size in re.findall(r"([ptce])(\d+)", match[2]):
        devices *= int(size) if name != "e" else 1  # Experts are spread over the same devices.
    return devices, ranks


def _cut(sequences: int, parts: int, key: str) -> int:
    if sequences % parts:
        raise UserError(f"areal: {sequences} sequences do not divide by {key} {parts}")
    return sequences // parts


def _level(settings: Settings, table: str, level: str) -> bool:
    """Say whether a normalisation is in use, and over what."""
    levels = (settings.value(f"{table}.mean_level"), settings.value(f"{table}.std_level"))
    return settings.has(table) and level in levels


def _learner(settings: Settings, model: str, minibatch: int) -> Learner:
    names = {"learning_rate": "lr", "adam_beta1": "beta1", "adam_beta2": "beta2",
             "adam_eps": "eps", "max_grad_norm": "gradient_clipping"}  # fmt: skip
    keys = {field: f"{model}.optimizer.{name}" for field, name in names.items()}
    values = {field: settings.number(key) for field, key in keys.items()}
    kind = settings.text(f"{model}.optimizer.type")
    decay = f"{model}.optimizer.weight_decay"
    return Learner(
        minibatch,
        1,
        OPTIMIZERS.get(kind, kind),
        keys,
        values | {"max_grad_norm": values["max_grad_norm"] or None},
        (decay, settings.number(decay)),
    )


def _counts(settings: Settings) -> tuple[Count, ...]:
    key = "total_train_steps"
    return (Count(key, settings.whole(key), iterations=True),) if key in settings else ()


def _notes(settings: Settings, batch: SequenceBatch) -> tuple[Caution, ...]:
    notes = []
    consumed = settings.value(CONSUMED)
    if batch.staleness and str(consumed) != str(batch.prompts):
        notes.append(
            Caution(
                f"{CONSUMED} {consumed} is not {PROMPTS} {batch.prompts}: {LAG} is counted in it"
            )
        )
    if settings.flag("dynamic_bs"):
        notes.append(Caution("dynamic_bs: a training step has fewer sequences where some are "
                             "rejected", False))  # fmt: skip
    return tuple(notes)
