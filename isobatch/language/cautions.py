"""What the rules do not keep the same in language-model RL: a warning each, with its number."""

from __future__ import annotations

import math
from collections.abc import Callable

from isobatch.language.library import Setup
from isobatch.scaling import Factors
from isobatch.scaling.limits import Caution

Limit = Callable[[Setup, Setup, Factors], str | None]
"""(before, after, factors) -> what is not the same, None where it is."""


def cautions(old: Setup, new: Setup, factors: Factors) -> list[Caution]:
    """Return what is to be known of the change, the most important first."""
    found = [Caution(text) for limit in LIMITS if (text := limit(old, new, factors))]
    details = [Caution(text, False) for limit in DETAILS if (text := limit(old, new, factors))]
    return [*found, *new.notes, *details]


def _assumed(old: Setup, new: Setup, factors: Factors) -> str | None:
    return old.assumed or None


def _untested(old: Setup, new: Setup, factors: Factors) -> str | None:
    if not factors.sizes_differ:
        return None
    return (
        "the rules were tested on games (arXiv 2110.00641), not on language models, and hold for "
        "minibatches well below the gradient noise scale, which is not known here"
    )


def _several_epochs(old: Setup, new: Setup, factors: Factors) -> str | None:
    if new.batch.epochs == 1 or not factors.sizes_differ:
        return None
    return (
        f"{new.epochs} {new.batch.epochs}: the rules hold for one pass; in later ones the policy "
        f"is {new.batch.steps_per_epoch} or more gradient steps away from the one that generated"
    )


def _other_epochs(old: Setup, new: Setup, factors: Factors) -> str | None:
    if factors.epochs == 1:
        return None
    return (
        f"{new.epochs} {old.batch.epochs} -> {new.batch.epochs}: {factors.epochs:.3g} times the "
        "gradient steps on the same sequences; no rule compensates for this"
    )


def _other_groups(old: Setup, new: Setup, factors: Factors) -> str | None:
    """Other samples per prompt: another baseline, whatever the batch size."""
    before, after = old.batch.samples, new.batch.samples
    if before == after:
        return None
    text = f"{new.samples} {before} -> {after}"
    if not new.group:
        return f"{text}: more sequences of a prompt are alike, so they count for less than prompts"
    text += (
        f": advantages ({new.group}) are relative to {after} samples of a prompt instead of "
        f"{before}, so they change themselves, and no rule compensates for this"
    )
    if new.own_sample and min(before, after) > 1:
        ratio = (1 - 1 / after) / (1 - 1 / before)
        text += f"; as each sample is in its own baseline, the mean gradient is {ratio:.3g} times"
    return text


def _staleness(old: Setup, new: Setup, factors: Factors) -> str | None:
    lag = new.batch.staleness
    if not lag or factors.iter == 1:
        return None
    kept = lag * factors.iter
    limit = (
        "the decoupled loss limits the step from the policy before the update"
        if new.decoupled
        else "the step is limited from the policy that generated"
    )
    return (
        f"{new.staleness} {lag} is now {lag * new.batch.sequences:,} sequences instead of "
        f"{lag * old.batch.sequences:,} ({limit}); {kept:.3g} would be as many"
    )


def _part_means(old: Setup, new: Setup, factors: Factors) -> str | None:
    """A mean over the tokens of a part of the batch weighs sequences by their neighbours."""
    if not new.token_mean or (new.part == old.part and not factors.sizes_differ):
        return None
    of = "a micro batch" if new.part is None else f"a micro batch of {new.part:g} sequences"
    was = "" if new.part == old.part or old.part is None else f" ({old.part:g} before)"
    return (
        f"{new.token_mean}: tokens are averaged over {of}{was}, and then the micro batches: how "
        "much a token counts depends on the micro batch"
    )


def _gradient_scale(old: Setup, new: Setup, factors: Factors) -> str | None:
    if new.scale == 1 == old.scale:
        return None
    was = "" if old.scale == new.scale else f" ({old.scale:.3g} before)"
    return (
        f"{new.scale_key}: the loss is divided by the tokens of a generation, not of a gradient "
        f"step, so gradients are {new.scale:.3g} times the mean{was}; {_bound(new)} clips them"
    )


def _bound(setup: Setup) -> str:
    bound = setup.policy.values.get("max_grad_norm")
    return f"{setup.policy.keys['max_grad_norm']} {bound or 'none'}"


def _over_batch(old: Setup, new: Setup, factors: Factors) -> str | None:
    if not new.over_batch or factors.iter == 1:
        return None
    return (
        f"{new.over_batch}: advantages are normalised over all sequences of an iteration, now "
        f"{new.batch.sequences:,} instead of {old.batch.sequences:,}"
    )


def _clipped_ratio(old: Setup, new: Setup, factors: Factors) -> str | None:
    before, after = old.batch.steps_per_iteration, new.batch.steps_per_iteration
    if not factors.sizes_differ or not new.clip:
        return None
    if after == 1 == before and (new.decoupled or not new.batch.staleness):
        return f"{new.clip} has no effect: one gradient step per generation, so ratios are 1"
    whose = "before the update" if new.decoupled else "that generated"
    text = f"{new.clip} limits the step from the policy {whose}"
    if before == after:
        return f"{text}, {after} gradient steps ago at most, as before"
    return f"{text}: {before} -> {after} gradient steps per generation, so it binds otherwise"


def _reference(old: Setup, new: Setup, factors: Factors) -> str | None:
    if not new.reference or not factors.sizes_differ:
        return None
    return f"{new.reference}: a penalty towards a reference policy is per token, and stays"


def _clipped_gradient(old: Setup, new: Setup, factors: Factors) -> str | None:
    bound = new.policy.values.get("max_grad_norm")
    if bound is None or factors.opt == 1:
        return None
    return (
        f"{new.policy.keys['max_grad_norm']} {bound:g}: when noise dominates, "
        f"{bound * math.sqrt(factors.opt):.4g} (x sqrt(c_opt)) clips as often as before "
        "(--grad-norm)"
    )


def _weight_decay(old: Setup, new: Setup, factors: Factors) -> str | None:
    """AdamW shrinks weights by lr x decay per step: by sqrt(c_opt) per sequence, with the rule."""
    key, decay = new.policy.decay
    if not decay or factors.opt == 1 or new.policy.optimizer != "adam":
        return None
    return (
        f"{key} {decay:g}: AdamW shrinks the weights by learning rate x decay per step, "
        f"{math.sqrt(factors.opt):.3g} times as much per sequence as before; "
        f"{decay / math.sqrt(factors.opt):.4g} shrinks them as much"
    )


def _no_rule(old: Setup, new: Setup, factors: Factors) -> str | None:
    name = new.policy.optimizer
    if name in ("adam", "sgd") or factors.opt == 1:
        return None
    return f"{name} has no rule: {new.policy.keys['learning_rate']} stays as it was"


LIMITS: list[Limit] = [
    _assumed,
    _no_rule,
    _other_groups,
    _several_epochs,
    _other_epochs,
    _staleness,
    _gradient_scale,
    _untested,
]
"""What may change learning."""
DETAILS: list[Limit] = [
    _part_means,
    _over_batch,
    _clipped_ratio,
    _reference,
    _clipped_gradient,
    _weight_decay,
]
