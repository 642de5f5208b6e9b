"""OpenRLHF: the flags of train_ppo_ray. Batch sizes are over all devices, in prompts and sequences.

rollout.batch_size counts prompts, each with rollout.n_samples_per_prompt responses.
train.batch_size counts sequences of one gradient step over all devices (utils/deepspeed/
deepspeed.py: micro batches are accumulated until it is reached), train.micro_batch_size those of
one pass on one device. The loss is averaged over the tokens of a whole gradient step
(utils/loss_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from isobatch.errors import UserError
from isobatch.language.batch import SequenceBatch
from isobatch.language.library import Average, Learner, Library, Setup, largest_divisor, times
from isobatch.language.settings import Settings
from isobatch.language.words import Given
from isobatch.scaling.limits import Caution
from isobatch.text import folded

PROMPTS, SAMPLES = "rollout.batch_size", "rollout.n_samples_per_prompt"
TRAIN, MICRO, EPOCHS = "train.batch_size", "train.micro_batch_size", "train.max_epochs"
NODES, GPUS = "num_nodes", "num_gpus_per_node"
ESTIMATOR, LAG = "algo.advantage.estimator", "train.async_queue_size"
GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
WHITENED = ("gae", "reinforce", "reinforce_baseline")
"""Estimators whose advantages are normalised over all sequences (ppo_utils/experience_maker.py)."""
OLDER = {
    "train_batch_size": TRAIN, "micro_train_batch_size": MICRO, "rollout_batch_size": PROMPTS,
    "n_samples_per_prompt": SAMPLES, "max_epochs": EPOCHS, "actor_learning_rate": "actor.adam.lr",
    "critic_learning_rate": "critic.adam.lr", "actor_num_nodes": "actor.num_nodes",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node", "advantage_estimator": ESTIMATOR,
}  # fmt: skip
"""Flags of earlier versions, which had one name without a section."""


class OpenRlhf(Library):
    """OpenRLHF's PPO with Ray, which REINFORCE++, RLOO, GRPO are advantage estimators of."""

    name = "openrlhf"
    title = "OpenRLHF"
    per_device = False
    programs = r"openrlhf\.cli\.train_ppo_ray$"
    expected = "openrlhf.cli.train_ppo_ray"
    read_keys = (PROMPTS, SAMPLES, TRAIN, MICRO, EPOCHS, "actor.num_nodes",
                 "actor.num_gpus_per_node", "actor.adam.lr")  # fmt: skip

    def settings(self, given: Given) -> Settings:
        """Return the settings; those of fine-tuning have a `model` and no actor."""
        for old, new in OLDER.items():
            if old in given.flat:
                raise UserError(f"openrlhf: {old} is the name of an earlier version; now {new}")
        ours = any(name.startswith(("rollout.", "actor.", "algo.")) for name in given.flat)
        if not ours and any(name.startswith("model.") for name in given.flat):
            raise UserError(
                "openrlhf: these are settings of SFT, DPO or a reward model (model.*); expected "
                "those of openrlhf.cli.train_ppo_ray (actor.*, rollout.*)"
            )
        return super().settings(given)

    def read(self, settings: Settings) -> Setup:
        """Read the batch, both optimisers and what depends on the batch."""
        sizes = {key: settings.whole(key) for key in (PROMPTS, SAMPLES, TRAIN, EPOCHS)}
        dynamic = settings.flag("train.dynamic_batch_enable")
        if not dynamic:
            sizes[MICRO] = settings.whole(MICRO)
        sizes |= {key: settings.whole(key) for key in (f"actor.{NODES}", f"actor.{GPUS}")}
        late = settings.flag("train.async_enable")
        if late:
            sizes[LAG] = settings.whole(LAG)
        batch = SequenceBatch(
            sizes[PROMPTS],
            sizes[SAMPLES],
            sizes[TRAIN],
            sizes[EPOCHS],
            _devices(settings),
            _ranks(settings),
            None if dynamic else sizes[MICRO],
            sizes[LAG] if late else 0,
        )
        estimator = settings.text(ESTIMATOR)
        decay = "train.ema_beta"
        averaged = settings.value("train.enable_ema") and settings.flag("train.enable_ema")
        penalty = settings.number("algo.kl.init_coef")
        return Setup(
            batch,
            _learner(settings, "actor", batch),
            sizes,
            critic=_learner(settings, "critic", batch) if estimator == "gae" else None,
            averages=(Average(decay, settings.number(decay)),) if averaged else (),
            epochs=EPOCHS,
            samples=SAMPLES,
            staleness=LAG if late else "",
            group=f"{ESTIMATOR} {estimator}" if estimator in GROUPED else "",
            own_sample=estimator != "rloo",
            over_batch=f"{ESTIMATOR} {estimator}" if estimator in WHITENED else "",
            reference=f"algo.kl.init_coef {penalty:g}" if penalty else "",
            clip=f"actor.eps_clip {settings.number('actor.eps_clip'):g}",
            notes=_notes(settings, batch),
        )

    def on_devices(self, settings: Settings, devices: int) -> dict[str, Any]:
        """Return the nodes of the actor, and of models that have as many and share its devices."""
        per_node = settings.whole(f"actor.{GPUS}")
        now = {NODES: devices // per_node} if devices % per_node == 0 else {NODES: 1, GPUS: devices}
        changes = {f"actor.{name}": value for name, value in now.items()}
        for model in ("critic", "ref", "reward"):
            if settings.has(model) and _devices(settings, model) == _devices(settings):
                keys = (f"{model}.{name}" for name in now)
                changes |= {key: changes[f"actor.{key.partition('.')[2]}"]
                            for key in keys if key in settings.given}  # fmt: skip
        batch = self.read(settings.over(changes)).batch
        share, rest = divmod(batch.minibatch, batch.ranks)
        if rest:
            raise UserError(
                f"openrlhf: {TRAIN} {batch.minibatch} does not divide by {batch.ranks} "
                "data-parallel ranks"
            )
        if batch.micro is not None and share % batch.micro:
            changes[MICRO] = largest_divisor(share, batch.micro)
        return changes

    def instead(self, settings: Settings, ratio: Fraction) -> dict[str, Any]:
        """Return prompts and gradient steps that grow with the devices."""
        return {key: times("openrlhf", key, settings.whole(key), ratio) for key in (PROMPTS, TRAIN)}

    def paste(self, changes: Mapping[str, Any]) -> str:
        """Return flags."""
        words: list[str] = []
        for key, value in changes.items():
            words += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
        return folded(words)


def _devices(settings: Settings, model: str = "actor") -> int:
    return settings.whole(f"{model}.{NODES}") * settings.whole(f"{model}.{GPUS}")


def _ranks(settings: Settings) -> int:
    keys = ("ds.ring_attn_size", "ds.tensor_parallel_size")
    split = settings.whole(keys[0]) * settings.whole(keys[1])
    devices = _devices(settings)
    if devices % split:
        raise UserError(
            f"openrlhf: {devices} devices do not divide by {' x '.join(keys)} = {split}"
        )
    return devices // split


def _learner(settings: Settings, model: str, batch: SequenceBatch) -> Learner:
    kind = settings.text(f"{model}.optim")
    first, second = settings.numbers(f"{model}.adam.betas")
    decay = f"{model}.adam.weight_decay"
    return Learner(
        batch.minibatch,
        batch.epochs,
        kind,
        {
            "learning_rate": f"{model}.{kind}.lr",
            "adam_beta1": f"{model}.adam.betas",
            "adam_beta2": f"{model}.adam.betas",
            "adam_eps": f"{model}.adam.eps",
            "max_grad_norm": f"{model}.max_norm",
        },
        {
            "learning_rate": settings.number(f"{model}.{kind}.lr"),
            "adam_beta1": first,
            "adam_beta2": second,
            "adam_eps": settings.number(f"{model}.adam.eps"),
            "max_grad_norm": settings.number(f"{model}.max_norm") or None,
        },
        (decay, settings.number(decay)),
    )


def _notes(settings: Settings, batch: SequenceBatch) -> tuple[Caution, ...]:
    notes = []
    if batch.micro is not None and batch.per_rank % batch.micro:
        notes.append(
            Caution(
                f"{TRAIN} {batch.minibatch}: {batch.per_rank:g} sequences per data-parallel rank "
                f"do not divide by {MICRO} {batch.micro}, so gradient steps are smaller"
            )
        )
    if settings.flag("algo.dynamic_filtering_enable"):
        notes.append(
            Caution("algo.dynamic_filtering_enable: prompts are generated until the batch is full,"
                    " so more are generated than counted here", False)
        )  # fmt: skip
    return tuple(notes)
