"""TRL: the arguments of GRPOConfig, RLOOConfig and PPOConfig. Batch sizes are per device.

GRPO and RLOO (trainer/grpo_config.py, grpo_trainer.py): per_device_train_batch_size counts
completions, not prompts. gradient_accumulation_steps such batches of every process make a gradient
step; steps_per_generation of them (as many, unless said otherwise) are generated at once. Both
count micro batches. num_iterations is the number of passes over what was generated.

PPO (experimental/ppo/ppo_trainer.py): per_device_train_batch_size x gradient_accumulation_steps
prompts of every process are generated, one completion each. The optimiser steps after
gradient_accumulation_steps micro batches, whatever num_mini_batches says (huggingface/trl#5645).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from isobatch.errors import UserError, shown
from isobatch.language.batch import SequenceBatch
from isobatch.language.library import Count, Learner, Library, Setup, times
from isobatch.language.settings import Settings, shipped
from isobatch.language.words import Given
from isobatch.scaling.limits import Caution
from isobatch.text import folded

SIZE, ACCUMULATED = "per_device_train_batch_size", "gradient_accumulation_steps"
GENERATED, STEPS, SAMPLES = "generation_batch_size", "steps_per_generation", "num_generations"
PASSES, PROCESSES = "num_iterations", "num_processes"
TRAINERS = ("grpo", "rloo", "ppo")
OTHERS = {
    "packing": "SFT", "dataset_text_field": "SFT", "completion_only_loss": "SFT",
    "assistant_only_loss": "SFT", "precompute_ref_log_probs": "DPO", "rpo_alpha": "DPO",
    "ld_alpha": "DPO", "desirable_weight": "KTO", "undesirable_weight": "KTO",
    "center_rewards_coefficient": "reward modelling",
}  # fmt: skip
"""Keys that only other trainers have."""
GENERATION_TOKENS = ("dapo", "cispo", "vespo")
"""Losses that are divided by the tokens of the generation batch (grpo_trainer.py, compute_loss)."""
ADAM = {"learning_rate": "learning_rate", "adam_beta1": "adam_beta1", "adam_beta2": "adam_beta2",
        "adam_eps": "adam_epsilon", "max_grad_norm": "max_grad_norm"}  # fmt: skip


class Trl(Library):
    """TRL's trainers, told apart by the command or by `algo=`."""

    name = "trl"
    title = "TRL"
    per_device = True
    programs = r"(grpo|gspo|rloo|ppo)[^/]*$"
    expected = "trl grpo, trl rloo, or a script that is named for grpo, rloo or ppo"
    read_keys = (SIZE, ACCUMULATED, GENERATED, STEPS, SAMPLES, PASSES, PROCESSES, "learning_rate")

    def settings(self, given: Given) -> Settings:
        """Return the settings of the trainer that the command, `algo` or the keys say."""
        if "algo" not in given.flat:
            self.refuse_other(given)
        algo = _trainer(given)
        keys = shipped()["keys"][f"trl {algo}"] | {PROCESSES: 1, "algo": algo}
        return Settings("trl", given.flat | {"algo": algo}, keys)

    def read(self, settings: Settings) -> Setup:
        """Read the batch and what depends on it."""
        passed, processes = settings.whole(SIZE), settings.whole(PROCESSES)
        accumulated = settings.whole(ACCUMULATED)
        read = _ppo if settings.text("algo") == "ppo" else _grouped
        return read(settings, passed, processes, accumulated)

    def on_devices(self, settings: Settings, devices: int) -> dict[str, Any]:
        """Return the number of processes: nothing else mentions devices."""
        return {PROCESSES: devices}

    def instead(self, settings: Settings, ratio: Fraction) -> dict[str, Any]:
        """Return fewer accumulated batches, or smaller ones where those do not divide."""
        keys = [key for key in (ACCUMULATED, STEPS) if key in settings]
        if any((settings.whole(key) / ratio).denominator != 1 for key in keys):
            keys = [SIZE]
        return {key: times("trl", key, settings.whole(key), 1 / ratio) for key in keys}

    def paste(self, changes: Mapping[str, Any]) -> str:
        """Return flags; the number of processes is accelerate's."""
        flags = [f"--{key} {value}" for key, value in changes.items() if key != PROCESSES]
        words = " ".join(flags).split()
        if PROCESSES in changes:
            words = ["accelerate", "launch", f"--{PROCESSES}", str(changes[PROCESSES]), "...",
                     *words]  # fmt: skip
        return folded(words)


def _trainer(given: Given) -> str:
    """Return which trainer it is; settings of one that is no reinforcement learning are refused."""
    for key, trainer in OTHERS.items():
        if key in given.flat:
            raise UserError(f"trl: {key} is a setting of {trainer}; expected GRPO, RLOO or PPO")
    said = given.flat.get("algo")
    if said is not None and said not in TRAINERS:
        raise UserError(f"trl: algo must be grpo, rloo or ppo, got {shown(said)}")
    named = re.search(r"grpo|gspo|rloo|ppo", given.program.rpartition("/")[2])
    if said or named is None:
        return said or _by_keys(given.flat)
    return named[0].replace("gspo", "grpo")  # GSPO is a setting of GRPO's.


def _by_keys(flat: Mapping[str, Any]) -> str:
    keys = shipped()["keys"]
    for algo in ("grpo", "ppo", "rloo"):
        others = {name for other in TRAINERS if other != algo for name in keys[f"trl {other}"]}
        if any(name in keys[f"trl {algo}"] and name not in others for name in flat):
            return algo
    if SAMPLES in flat or STEPS in flat or GENERATED in flat:
        return "grpo"  # RLOO has these keys too, and the same batch.
    raise UserError("trl: which trainer? Add algo=grpo, algo=rloo or algo=ppo")


def _grouped(settings: Settings, passed: int, processes: int, accumulated: int) -> Setup:
    """Read GRPO or RLOO: micro batches of completions, generated and stepped by their number."""
    one = passed * processes
    steps = _steps_per_generation(settings, one, accumulated)
    samples, passes = settings.whole(SAMPLES), settings.whole(PASSES)
    if (one * steps) % samples:
        raise UserError(
            f"trl: {one * steps} completions of a generation ({SIZE} {passed} x {processes} "
            f"processes x {STEPS} {steps}) do not divide by {SAMPLES} {samples}"
        )
    if max(steps, accumulated) % min(steps, accumulated) or (accumulated > steps and passes > 1):
        raise UserError(
            f"trl: gradient steps of {accumulated} micro batches ({ACCUMULATED}) lie across "
            f"generations of {steps} ({STEPS}): one must divide the other"
        )
    # Several generations by one policy are one iteration.
    sequences = one * max(steps, accumulated)
    batch = SequenceBatch(
        sequences // samples, samples, one * accumulated, passes, processes, processes, passed
    )
    sizes = {SIZE: passed, PROCESSES: processes, ACCUMULATED: accumulated}
    sizes |= {key: settings.whole(key) for key in (STEPS, GENERATED) if key in settings}
    sizes |= {SAMPLES: samples, PASSES: passes}
    rloo = settings.text("algo") == "rloo"
    loss = "" if rloo else settings.text("loss_type")
    scaled = "none" if rloo else str(settings.value("scale_rewards")).lower()
    normalized = rloo and settings.flag("normalize_advantages")
    penalty = settings.number("beta")
    return Setup(
        batch,
        _learner(settings, batch.minibatch, passes),
        sizes,
        counts=_counts(settings),
        epochs=PASSES,
        samples=SAMPLES,
        group=f"scale_rewards {scaled}" if not rloo else "RLOO",
        own_sample=not rloo,
        over_batch="normalize_advantages true" if normalized
        else "scale_rewards batch" if scaled == "batch" else "",
        token_mean=f"loss_type {loss}" if loss == "bnpo" else "",
        part=passed,
        scale=accumulated / steps if loss in GENERATION_TOKENS else 1.0,
        scale_key=f"loss_type {loss}",
        reference=f"beta {penalty:g}" if penalty else "",
        clip=f"epsilon {settings.number('epsilon'):g}",
        assumed=_assumed(settings),
    )  # fmt: skip


def _steps_per_generation(settings: Settings, one: int, accumulated: int) -> int:
    if STEPS in settings and GENERATED in settings:
        raise UserError(f"trl: give {GENERATED} or {STEPS}, not both")
    if GENERATED not in settings:
        return settings.whole(STEPS) if STEPS in settings else accumulated
    size = settings.whole(GENERATED)
    if size % one:
        raise UserError(f"trl: {GENERATED} {size} does not divide by {one} ({SIZE} x processes)")
    return size // one


def _ppo(settings: Settings, passed: int, processes: int, accumulated: int) -> Setup:
    """Read PPO: one completion per prompt; the optimiser steps once per accumulated batches."""
    parts, epochs = settings.whole("num_mini_batches"), settings.whole("num_ppo_epochs")
    local = passed * accumulated
    if local % parts:
        raise UserError(f"trl: {local} prompts per process do not divide by num_mini_batches")
    passes = parts * -(-(local // parts) // passed)
    if passes % accumulated:
        raise UserError(
            f"trl: {passes} micro batches per epoch do not divide by {ACCUMULATED} {accumulated}: "
            "gradient steps lie across epochs"
        )
    rows = local * processes
    batch = SequenceBatch(
        rows, 1, rows * accumulated // passes, epochs, processes, processes, min(passed, local)
    )
    sizes = {SIZE: passed, PROCESSES: processes, ACCUMULATED: accumulated}
    sizes |= {"num_mini_batches": parts, "num_ppo_epochs": epochs}
    notes = []
    if batch.steps_per_epoch != parts:
        notes.append(
            Caution(
                f"num_mini_batches {parts} with {ACCUMULATED} {accumulated}: TRL's optimiser "
                f"steps {batch.steps_per_epoch} times per epoch, not {parts} (huggingface/trl"
                "#5645)"
            )
        )
    return Setup(
        batch,
        _learner(settings, batch.minibatch, epochs),
        sizes,
        counts=_counts(settings),
        epochs="num_ppo_epochs",
        over_batch="PPO",
        token_mean="PPO's loss",
        part=passed,
        reference=f"kl_coef {settings.number('kl_coef'):g}",
        clip=f"cliprange {settings.number('cliprange'):g}",
        assumed=_assumed(settings),
        notes=tuple(notes),
    )


def _learner(settings: Settings, minibatch: int, epochs: int) -> Learner:
    kind = str(settings.value("optim") or "adamw_torch")
    values = {field: settings.number(key) for field, key in ADAM.items()}
    known = "adam" if "adamw" in kind else "sgd" if kind == "sgd" else kind
    return Learner(
        minibatch,
        epochs,
        known,
        ADAM,
        values | {"max_grad_norm": values["max_grad_norm"] or None},
        ("weight_decay", settings.number("weight_decay")),
    )


def _counts(settings: Settings) -> tuple[Count, ...]:
    """Return what counts gradient steps: budget, warm-up, and copies to the reference policy."""
    keys = ["max_steps", "warmup_steps"]
    if settings.value("sync_ref_model") and settings.flag("sync_ref_model"):
        keys.append("ref_model_sync_steps")
    found = [(key, settings.number(key)) for key in keys if key in settings]
    # A warm-up below 1 is a part of the budget.
    return tuple(Count(key, int(value)) for key, value in found if value >= 1)


def _assumed(settings: Settings) -> str:
    if PROCESSES in settings.given:
        return ""
    return (
        f"{PROCESSES} is not given: one device is assumed; {PROCESSES}=N says another (accelerate "
        "launch --num_processes N)"
    )
