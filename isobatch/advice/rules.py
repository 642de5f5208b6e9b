"""The rules of advice: each a small function from a run's history to what it finds, or None.

They stand in order of importance. To add one, write a function here under `@rule(when, source)`:

    @rule("entropy over 10", OURS)
    def entropy_high(run: History) -> Finding | None:
        entropy = run.median("entropy")
        if entropy is None or entropy <= 10:
            return None
        return note(entropy, 10, f"entropy {entropy:.2g}, over 10: ...", "...", to(ent_coef=0.0))

and a run that breaks it in tests/advice/test_rules.py. A rule asks for columns by name and gets
None where they are not there, so it needs no care for other versions, algorithms or short runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from isobatch.advice.finding import Finding
from isobatch.advice.history import LATE, History
from isobatch.presets import family_preset, listed_family
from isobatch.recipe import Recipe
from isobatch.registry import ALGORITHMS
from isobatch.scaling.horizon import horizon
from isobatch.text import counted, number

PAPER = "arXiv 2110.00641, section 6.2"
MAYOR = "arXiv 2506.03404"
MAYOR_NUMBERS = f"{MAYOR}; the numbers are ours"
NOTES = "rule of thumb"
OURS = "ours"

Changes = dict[str, Any]
NOTHING: Changes = {}
Look = Callable[[History], Finding | None]


@dataclass(frozen=True)
class Rule:
    """A rule: when it speaks, whose it is, and what looks."""

    name: str
    when: str
    source: str
    look: Look

    def __call__(self, run: History) -> Finding | None:
        """Return what it finds in a run."""
        found = self.look(run)
        return found and replace(found, rule=self.name, source=self.source)


RULES: list[Rule] = []


def rule(when: str, source: str) -> Callable[[Look], Look]:
    """Make a function a rule, after those there are."""

    def add(look: Look) -> Look:
        RULES.append(Rule(look.__name__.replace("_", "-"), when, source, look))
        return look

    return add


problem = partial(Finding, "problem")
warning = partial(Finding, "warning")
note = partial(Finding, "note")


def to(**fields: Any) -> Changes:
    """Return recipe fields and what to set them to: to(n_envs=32)."""
    return fields


FAR = 8.0
"""Times the preset's, or one over it. The presets of all families lie within 12 of each other."""


@lru_cache(maxsize=64)  # Rules are asked about many moments of a run.
def far_setting(recipe: Recipe) -> tuple[str, float, float] | None:
    """Return the setting that is farthest from the environment's preset: (name, own, preset's).

    None where there is no preset, or no setting is `FAR` from it.
    """
    family = listed_family(recipe.env)
    if family is None or recipe.algo not in ALGORITHMS:
        return None
    usual = family_preset(family, recipe.env, recipe.algo)
    sizes = {"gamma": (1 / (1 - min(recipe.objective.gamma, 1 - 1e-9)),
                       1 / (1 - usual.objective.gamma)),
             "vf_coef": (recipe.objective.vf_coef, usual.objective.vf_coef)}  # fmt: skip
    if recipe.optimizer.optimizer == usual.optimizer.optimizer and not recipe.adapts_rate:
        sizes["learning_rate"] = recipe.optimizer.learning_rate, usual.optimizer.learning_rate
    factors = {name: abs(math.log(a / b)) for name, (a, b) in sizes.items() if a > 0 and b > 0}
    name = max(factors, key=lambda each: factors[each])
    if factors[name] < math.log(FAR):
        return None
    return name, recipe.values[name], usual.values[name]


def smaller_steps(run: History, factor: float) -> Changes:
    """Return a step size times `factor`, a tenth at least and a half at most."""
    return step_size(run, min(0.5, max(0.1, factor)))


def step_size(run: History, factor: float) -> Changes:
    """Return a step size times `factor`, in two digits; the preset's where that is far that way.

    The KL divergence that it follows, where it follows one, grows with its square.
    """
    optimizer = run.recipe.optimizer
    if run.recipe.adapts_rate:
        return to(desired_kl=float(f"{optimizer.desired_kl * factor**2:.2g}"))
    name, own, usual = far_setting(run.recipe) or ("", 1.0, 1.0)
    if name == "learning_rate" and (usual > own) == (factor > 1):
        return to(learning_rate=usual)
    return to(learning_rate=float(f"{optimizer.learning_rate * factor:.2g}"))


def more_entropy(run: History) -> Changes:
    """Return three times the entropy bonus, 0.01 at least."""
    return to(ent_coef=float(f"{max(0.01, 3 * run.recipe.objective.ent_coef):.2g}"))


def cuts(run: History) -> bool:
    """Whether the number of minibatches is the recipe's to choose."""
    return "n_minibatches" not in run.algorithm.fixes


def power_of_two(most: int) -> int:
    """Return the largest power of two that is no larger."""
    return 1 << (most.bit_length() - 1)


def times(factor: float) -> str:
    """Return how many times: 3.2x, 40x, 1e+06x."""
    return f"{factor:.1f}x" if factor < 10 else f"{factor:.3g}x"


# What keeps a run from learning.

LEARNING = " (a note if the return has risen by half or more)"

HUGE_GRADIENT, HUGE_LOSS = 1e4, 1e6
"""Norms and losses far beyond what runs here had: under 300 and 1,400. None of them diverged, so
these are guesses."""
GROWN = 100.0


@rule(
    f"an update was undone because it was not finite, or gradient norm over {HUGE_GRADIENT:.0e}, "
    f"or value loss over {HUGE_LOSS:.0e}, each {GROWN:.0f} times its first value or more",
    OURS,
)
def diverging(run: History) -> Finding | None:
    """NaN is near: or there already, and undone."""
    undone = int(sum(run.recent("skipped_updates")))
    slower = smaller_steps(run, 0.1)
    if run.recipe.optimizer.max_grad_norm is None:
        slower |= to(max_grad_norm=0.5)
    if undone:
        return problem(
            undone,
            0,
            f"{counted(undone, 'update')} {run.lately} gave numbers that are not finite and "
            f"{'was' if undone == 1 else 'were'} undone",
            "take smaller steps and clip the gradient",
            slower,
        )
    for name, what, most in (
        ("grad_norm", "gradient norm", HUGE_GRADIENT),
        ("value_loss", "value loss", HUGE_LOSS),
    ):
        now, first = run.median(name), run.early(name)
        if now is not None and first is not None and now > most and now > GROWN * first:
            return problem(
                now,
                most,
                f"{what} {now:.2g} {run.lately}, {first:.2g} at first: on its way to NaN",
                "take smaller steps and clip the gradient",
                slower,
            )
    return None


UNSEEN_EPISODES, UNSEEN_PART, UNSEEN_LONG = 20, 0.1, 1 / 3


@rule(
    f"the mean return has never changed, in {UNSEEN_EPISODES} episodes and a third of the budget "
    "or more (a note after a tenth of it)",
    OURS,
)
def reward_never_seen(run: History) -> Finding | None:
    """Nothing the policy did has made a difference: no batch mends that."""
    episodes = int(run.last("episodes") or 0)
    if not run.reward_unseen or episodes < UNSEEN_EPISODES or run.part < UNSEEN_PART:
        return None
    always = run.values("episode_return")[-1]
    # FrozenLake8x8-v1 learns after a thousand episodes without a reward.
    return (problem if run.part >= UNSEEN_LONG else note)(
        episodes,
        UNSEEN_EPISODES,
        f"every one of {episodes:,} episodes returned {number(always)}: no action has made a "
        "difference yet, so there is nothing to learn from. This is exploration, not the batch",
        "explore more, shape the reward, or begin with an easier version of the task",
        NOTHING if run.algorithm.explores else more_entropy(run),
    )


@rule(
    f"learning_rate, vf_coef or 1 / (1 - gamma) is {FAR:g} times the preset's, or a part so small, "
    "and past a quarter of the budget the return is no better than at the start or has fallen back",
    NOTES,
)
def far_from_preset(run: History) -> Finding | None:
    """It does not learn, and one setting is far from what does on such environments."""
    fallen = run.lost is not None and run.lost > FALLEN
    if run.part < 0.25 or not (fallen or run.has_progressed is False):
        return None
    found = far_setting(run.recipe)
    if found is None:
        return None
    name, own, usual = found
    return warning(
        own,
        usual,
        f"{name} is {own:g}; the preset for such environments has {usual:g}",
        "begin from the preset's",
        {name: usual},
    )


KL_HIGH, KL_FAR = 0.05, 0.2
"""Runs that learn had 0.012 or less, as medians over tenths of a run. It is the mean over an
iteration's updates."""


@rule(f"approximate KL over {KL_HIGH} (over {KL_FAR}: a problem){LEARNING}", OURS)
def kl_high(run: History) -> Finding | None:
    """Each iteration takes the policy far from the one that acted.

    A note in runs that learn: it spoke as often of good runs as of bad ones (docs/tasks/advise.md).
    """
    kl, epochs = run.median("approx_kl"), run.batch.n_epochs
    if kl is None or kl <= KL_HIGH:
        return None
    say = note if run.learns else problem if kl > KL_FAR else warning
    text = f"approximate KL {kl:.2g} {run.lately}, over {KL_HIGH}: each iteration takes the "
    text += "policy far from the one that acted"
    slower = smaller_steps(run, math.sqrt(KL_HIGH / 2 / kl))
    if epochs == 1:
        return say(kl, KL_HIGH, text, "take smaller steps", slower)
    return say(
        kl,
        KL_HIGH,
        f"{text}, in {counted(epochs, 'epoch')}",
        "take smaller steps, or fewer epochs: one to begin with (2110.00641)",
        slower if kl > KL_FAR else to(n_epochs=max(1, epochs // 2)),
    )


CLIP_HIGH, CLIP_HIGH_EPOCHS = 0.1, 0.2


def clips(run: History) -> bool:
    """Whether the clip fraction says anything: the objective clips, and steps follow the first."""
    return run.recipe.objective.objective == "clip" and run.batch.grad_steps_per_iteration > 1


@rule(
    f"clip fraction over {CLIP_HIGH:.0%} with one epoch, {CLIP_HIGH_EPOCHS:.0%} with several",
    PAPER,
)
def clip_high(run: History) -> Finding | None:
    """More of the batch is clipped away than a good step size would.

    A note only: twice it spoke of good runs as often as of bad ones (docs/tasks/advise.md).
    """
    clipped, epochs = run.median("clip_fraction"), run.batch.n_epochs
    most = CLIP_HIGH if epochs == 1 else CLIP_HIGH_EPOCHS
    if clipped is None or clipped <= most or not clips(run):
        return None
    return note(
        clipped,
        most,
        f"clip fraction {clipped:.0%} {run.lately}, over {most:.0%} with "
        f"{counted(epochs, 'epoch')}: the step size is too high",
        "take smaller steps" + (", or fewer epochs" if epochs > 1 else ""),
        smaller_steps(run, most / 2 / clipped),
    )


ENTROPY_LEFT = 0.05
"""Of discrete policies: the part of the uniform policy's entropy."""
ENTROPY_LOST = 3.0
"""Of continuous ones, in nats per dimension: a standard deviation 20 times smaller."""


def entropy_floor(run: History) -> float | None:
    """Return the entropy under which a policy has stopped exploring, None where that is unknown."""
    first, actions = run.early("entropy"), run.actions
    if first is None:
        return None
    if actions is not None and actions.entropy is None:
        return first - ENTROPY_LOST * max(1, actions.size)
    most = first if actions is None or actions.entropy is None else actions.entropy
    return ENTROPY_LEFT * most if most > 0 and min(run.recent("entropy")) >= 0 else None


@rule(
    f"entropy under {ENTROPY_LEFT:.0%} of the uniform policy's, or of continuous actions "
    f"{ENTROPY_LOST:.0f} nats per dimension lower than at first, and the return no better than "
    "then",
    OURS,
)
def entropy_collapse(run: History) -> Finding | None:
    """The policy has stopped trying things before it found any that work."""
    entropy, first, floor = run.median("entropy"), run.early("entropy"), entropy_floor(run)
    if entropy is None or first is None or floor is None or entropy > floor:
        return None
    if run.has_progressed is not False:
        return None
    change, advice = more_entropy(run), "reward entropy"
    leap = max(run.values("approx_kl"), default=0.0)
    if leap > KL_HIGH:  # It collapsed in a few steps: they were too large.
        change = smaller_steps(run, 0.1)
        advice = f"take smaller steps: the KL has been {leap:.2g} in an iteration"
    text = "the policy has stopped exploring, and the return is no better than at the start"
    if run.actions is not None and run.actions.entropy is None:
        lost = (first - entropy) / max(1, run.actions.size)
        said = f"entropy {lost:.1f} nats per action dimension lower than at first"
        return problem(lost, ENTROPY_LOST, f"{said}: {text}", advice, change)
    left = ENTROPY_LEFT * entropy / floor
    said = f"entropy {entropy:.2g} {run.lately}, {left:.1%} of the uniform policy's"
    return problem(left, ENTROPY_LEFT, f"{said}: {text}", advice, change)


LARGE_BONUS, ENTROPY_KEPT = 0.1, 0.9


@rule(
    f"ent_coef over {LARGE_BONUS:g}, and after a quarter of the budget entropy over "
    f"{ENTROPY_KEPT:.0%} of the uniform policy's, or of continuous actions no lower than at first",
    OURS,
)
def entropy_bonus(run: History) -> Finding | None:
    """The bonus outweighs the reward: the policy stays random."""
    entropy, first = run.median("entropy"), run.early("entropy")
    bonus, actions = run.recipe.objective.ent_coef, run.actions
    if entropy is None or first is None or bonus <= LARGE_BONUS or run.part < 0.25:
        return None
    uniform = None if actions is None else actions.entropy
    if entropy < (first if uniform is None else ENTROPY_KEPT * uniform):
        return None
    beside = f"{first:.2g} at first" if uniform is None else f"{entropy / uniform:.0%} of uniform"
    return note(
        bonus,
        LARGE_BONUS,
        f"ent_coef is {bonus:g}, over {LARGE_BONUS:g}, and the entropy {entropy:.2g} ({beside}): "
        "the bonus outweighs the reward, and the policy stays random",
        "reward entropy less",
        to(ent_coef=0.01),
    )


LARGE_VALUE_LOSS, LARGE_SHARED = 50.0, 1.0
"""Times vf_coef. Where rewards are normalised it stayed under 0.8 here; Pendulum-v1, which learns
hardly anything as it is, has 140 to 500, Acrobot-v1 with a shared network, which learns nothing,
6."""
DROWNED = 10.0
UNEXPLAINED = 0.05


@rule(
    f"vf_coef x value loss over {LARGE_SHARED:g} in a shared network, or over "
    f"{LARGE_VALUE_LOSS:.0f} with an explained variance under {UNEXPLAINED}; gradient norm over "
    f"{DROWNED:.0f} x max_grad_norm, rewards not normalised, a fifth of the budget spent (a note "
    "if the return has risen by half or more)",
    OURS,
)
def value_scale(run: History) -> Finding | None:
    """The value loss is so large that its gradient outweighs the policy's, or is clipped away.

    With one network both losses move the same weights; with two, clipping the norm of both
    gradients together leaves the value function a step too small for returns in the hundreds.
    """
    recipe, shared = run.recipe, run.recipe.model.architecture == "shared"
    if recipe.normalize.normalize_rewards or run.part < 0.2:
        return None
    # A shared network may come to fit its values once the policy is lost: the worse of both times.
    loss, norm = (
        max(run.median(name) or 0.0, (run.early(name) or 0.0) if shared else 0.0)
        for name in ("value_loss", "grad_norm")
    )
    explained, clipped = run.median("explained_variance"), recipe.optimizer.max_grad_norm
    weighted = recipe.objective.vf_coef * loss
    least = LARGE_SHARED if shared else LARGE_VALUE_LOSS
    if weighted <= least or clipped is None or norm <= DROWNED * clipped:
        return None
    if not shared and (explained is None or explained >= UNEXPLAINED):
        return None
    policy = run.median("policy_loss")
    beside = "" if policy is None else f" and the policy loss {abs(policy):.1g}"
    return (note if run.learns else problem)(
        weighted,
        least,
        f"vf_coef x value loss is {weighted:.3g}{beside}, and gradients of norm {norm:.3g} are "
        f"clipped to {clipped:g}: "
        + (
            "in a shared network the value function's gradient outweighs the policy's"
            if shared
            else "too little is left for the value function to learn returns this large"
        ),
        "normalise rewards" + (", or give the value function its own network" * shared),
        to(normalize_rewards=True),
    )


LARGE_WEIGHT = 5.0


@rule(
    f"vf_coef over {LARGE_WEIGHT:g}, gradient norm over {DROWNED:.0f} x max_grad_norm, a fifth of "
    "the budget spent",
    OURS,
)
def value_weight(run: History) -> Finding | None:
    """Both gradients are clipped together: the value function's leaves the policy no step."""
    weight, norm = run.recipe.objective.vf_coef, run.median("grad_norm")
    clipped = run.recipe.optimizer.max_grad_norm
    if norm is None or clipped is None or weight <= LARGE_WEIGHT or run.part < 0.2:
        return None
    if norm <= DROWNED * clipped:
        return None
    return note(
        weight,
        LARGE_WEIGHT,
        f"vf_coef is {weight:g}, over {LARGE_WEIGHT:g}, and gradients of norm {norm:.3g} are "
        f"clipped to {clipped:g}: the value function's leave the policy's next to nothing",
        "weight the value loss less",
        to(vf_coef=0.5),
    )


@rule(
    f"explained variance under {UNEXPLAINED} after a quarter of the budget, while advantages are "
    "not much smaller than at first",
    OURS,
)
def value_unlearned(run: History) -> Finding | None:
    """The value function explains nothing of the returns.

    A note only: it spoke of good runs and of no bad one (docs/tasks/advise.md).
    """
    explained = run.median("explained_variance")
    if explained is None or explained >= UNEXPLAINED or run.rows < 20 or run.part < 0.25:
        return None
    if run.is_settled or run.reward_unseen or run.reward_rare:
        return None
    if not run.recipe.objective.baseline:
        return None
    if any(cause(run) is not None for cause in (value_scale, entropy_collapse, kl_low)):
        return None
    normalised = run.recipe.normalize.normalize_rewards
    return note(
        explained,
        UNEXPLAINED,
        f"explained variance {explained:.2g} {run.lately}, under {UNEXPLAINED}: the value function "
        "predicts returns no better than their mean",
        "take larger steps on the value function"
        if normalised
        else "normalise rewards, so that returns are of the size that networks learn",
        to(vf_coef=2 * run.recipe.objective.vf_coef) if normalised else to(normalize_rewards=True),
    )


FALLEN = 0.5


@rule(
    f"the mean return has lost over {FALLEN:.0%} of the best gain it had made over its start", OURS
)
def return_fallen(run: History) -> Finding | None:
    """It had learned, and has unlearned."""
    lost, best, now = run.lost, run.best_return, run.last("episode_return")
    if lost is None or lost <= FALLEN:
        return None
    much = "all" if lost >= 1 else f"{lost:.0%}"
    adapts = run.recipe.adapts_rate
    return warning(
        lost,
        FALLEN,
        f"the mean return fell from {best:.4g} to {now:.4g}, {much} of what had been gained",
        "take smaller steps" + ("" if adapts else ", that become smaller during the run"),
        smaller_steps(run, 0.5) | ({} if adapts else to(learning_rate_schedule="linear")),
    )


@rule(f"past {LATE:.0%} of the budget the mean return is no better than at the start", OURS)
def no_progress(run: History) -> Finding | None:
    """Nothing has been learned in half of the budget: a note, since learning may begin late."""
    if run.has_progressed is not False or run.part < LATE:
        return None
    if run.reward_unseen or run.reward_rare:
        return None
    causes = value_scale, entropy_collapse, far_from_preset, kl_low
    if any(cause(run) is not None for cause in causes):
        return None
    now, first = run.median("episode_return"), run.first_return
    assert now is not None
    assert first is not None
    return note(
        now,
        first,
        f"the mean return is {now:.4g} after {run.part:.0%} of the budget, {first:.4g} at the "
        "start: nothing has been learned",
        "tune the learning rate first: it matters most (2110.00641)",
    )


ESS_LOW, ESS_GONE = 0.8, 0.5
"""Healthy runs here stay over 0.96."""


@rule(f"importance ESS under {ESS_LOW:.0%} (under {ESS_GONE:.0%}: a problem)", MAYOR_NUMBERS)
def importance_ess(run: History) -> Finding | None:
    """A few rows carry the batch: the policy has moved too far from the one that acted."""
    left = run.median("importance_ess", SELDOM)
    if left is None or left >= ESS_LOW:
        return None
    epochs = run.batch.n_epochs
    return (problem if left < ESS_GONE else warning)(
        left,
        ESS_LOW,
        f"importance ESS {left:.0%} {run.lately}, under {ESS_LOW:.0%}: after an iteration's "
        "updates a few rows outweigh the rest of the batch",
        "take fewer epochs, or smaller steps" if epochs > 1 else "take smaller steps",
        to(n_epochs=max(1, epochs // 2)) if epochs > 1 else smaller_steps(run, 0.5),
    )


CAPPED = 1e-3


@rule(f"over {CAPPED:.1%} of importance ratios are capped at max_ratio", OURS)
def ratios_capped(run: History) -> Finding | None:
    """Ratios this large are no sign of a policy that changes step by step."""
    capped = run.median("capped_fraction")
    if capped is None or capped <= CAPPED:
        return None
    cap = run.recipe.objective.max_ratio
    return warning(
        capped,
        CAPPED,
        f"{capped:.1%} of importance ratios reach {cap:g} {run.lately}: actions have become that "
        "much likelier within an iteration",
        "take smaller steps",
        smaller_steps(run, 0.1),
    )


STOPPED, TAKEN = 0.5, 0.5
USUAL_TARGET = 0.01


@rule(
    f"target_kl stops over {STOPPED:.0%} of iterations, before {TAKEN:.0%} of their gradient steps",
    OURS,
)
def target_kl_stops(run: History) -> Finding | None:
    """Most of the gradient steps that the recipe asks for are never taken."""
    target, recent = run.recipe.objective.target_kl, run.recent("updates_per_sample")
    stops = sum(run.recent("stopped_early", 0)) / max(1, len(recent))
    passes = run.median("updates_per_sample")
    if target is None or passes is None or stops <= STOPPED:
        return None
    taken = passes / run.batch.n_epochs
    if taken >= TAKEN:
        return None
    return warning(
        stops,
        STOPPED,
        f"target_kl {target:g} stopped {min(1.0, stops):.0%} of iterations {run.lately}, after "
        f"{taken:.0%} of their gradient steps",
        "take smaller steps, so that all of them are taken"
        if target >= USUAL_TARGET
        else f"allow a larger KL: {USUAL_TARGET:g} to 0.03 are usual",
        smaller_steps(run, 0.5) if target >= USUAL_TARGET else to(target_kl=USUAL_TARGET),
    )


# What the data and the budget allow.

FEW_ITERATIONS, FEW_STEPS = 15, 200


@rule(
    f"the budget holds under {FEW_ITERATIONS} iterations, or under {FEW_STEPS} gradient steps (not "
    "of a2c and reinforce, which take one an iteration)",
    OURS,
)
def few_updates(run: History) -> Finding | None:
    """The run is over before the policy has changed often."""
    batch = run.batch
    iterations = run.recipe.total_timesteps / batch.rollout_size
    steps = iterations * batch.grad_steps_per_iteration
    if iterations >= FEW_ITERATIONS and (steps >= FEW_STEPS or not cuts(run)):
        return None
    total = run.recipe.total_timesteps
    if iterations >= FEW_ITERATIONS:
        return warning(
            steps,
            FEW_STEPS,
            f"{total:,} environment steps are {steps:,.0f} gradient steps, under {FEW_STEPS}: "
            "the policy changes too rarely to learn much",
            "split rollouts into more minibatches",
            to(n_minibatches=min(32, max(4, 2 * batch.n_minibatches))),
        )
    wanted = max(1, total // (FEW_ITERATIONS * 2))
    # Rollouts no shorter than GAE looks ahead: fewer environments instead.
    reach = horizon(run.recipe.objective.gamma, run.recipe.objective.gae_lambda)
    least = 2 ** math.ceil(math.log2(min(reach, batch.n_steps)))
    n_steps = min(batch.n_steps, max(least, power_of_two(max(1, wanted // batch.n_envs))))
    n_envs = min(batch.n_envs, power_of_two(max(1, wanted // n_steps)))
    return warning(
        iterations,
        FEW_ITERATIONS,
        f"{total:,} environment steps are {iterations:.3g} iterations of {batch.rollout_size:,}, "
        f"under {FEW_ITERATIONS}: the policy that acts changes too rarely to learn much",
        "collect smaller rollouts, or train for longer",
        to(n_envs=n_envs, n_steps=n_steps, n_minibatches=min(4, n_envs * n_steps))
        if cuts(run)
        else to(n_envs=n_envs, n_steps=n_steps),
    )


FEW_EPISODES = 2.0


@rule(f"the budget gives each environment under {FEW_EPISODES:.0f} episodes", OURS)
def long_episodes(run: History) -> Finding | None:
    """With many environments, each is stepped too seldom to see the end of its episodes."""
    length = run.median("episode_length", 1)
    if not length or length <= 0:
        return None
    each = run.recipe.total_timesteps / run.batch.n_envs
    if each / length >= FEW_EPISODES:
        return None
    fitting = max(1, int(run.recipe.total_timesteps / (10 * length)))
    return warning(
        each / length,
        FEW_EPISODES,
        f"episodes of {length:,.0f} steps, and the budget gives each of {run.batch.n_envs:,} "
        f"environments {each:,.0f}: {each / length:.2g} episodes, under {FEW_EPISODES:.0f}",
        "use fewer environments, or train for longer",
        to(n_envs=min(fitting, run.batch.n_envs))
        if fitting < run.batch.n_envs
        else to(total_timesteps=math.ceil(10 * length * run.batch.n_envs)),
    )


@rule(
    "n_steps under GAE's horizon 1 / (1 - gamma lambda), lambda under 1",
    "arXiv 2110.00641, footnote 4",
)
def short_rollout(run: History) -> Finding | None:
    """Rollouts end before GAE has seen what it would look at: the value function must stand in.

    A note only: it spoke of good runs as often as of bad ones (docs/tasks/advise.md).
    """
    settings, n_steps = run.recipe.objective, run.batch.n_steps
    reach = horizon(settings.gamma, settings.gae_lambda)
    # With lambda 1 the returns of n steps are what is wanted, as in A2C.
    if n_steps >= reach or settings.gae_lambda == 1 or run.algorithm.whole_returns:
        return None
    wanted = 2 ** math.ceil(math.log2(2 * reach))
    fewer = max(min(8, run.batch.n_envs), run.batch.rollout_size // wanted)
    return note(
        n_steps,
        reach,
        f"rollouts of {n_steps} steps, and GAE looks {reach:.3g} ahead (1 / (1 - gamma lambda)): "
        "the rest is left to the value function",
        "collect longer rollouts, from fewer environments for the same size",
        to(n_envs=fewer, n_steps=wanted),
    )


BEYOND = 2.0


@rule(
    f"minibatches over {BEYOND:.0f} x the measured noise scale (a note if over 1 x it)",
    "McCandlish et al. 2018",
)
def beyond_noise(run: History) -> Finding | None:
    """The gradient is known better than a step needs: smaller minibatches take more steps."""
    scale, rows = run.median("noise_scale", 1), run.batch.minibatch_size
    if scale is None or scale <= 0 or rows <= scale:
        return None
    cut = min(run.batch.rollout_size // 32, 2 ** math.ceil(math.log2(rows / scale)))
    more = max(1, cut) * run.batch.n_minibatches
    fixed = not cuts(run)
    return (warning if rows > BEYOND * scale else note)(
        rows,
        scale,
        f"minibatches of {rows:,} rows, and a measured noise scale of {scale:,.0f}: beyond it more "
        "rows hardly make a step better",
        "collect smaller rollouts" if fixed else "split rollouts into more minibatches",
        NOTHING if fixed or more > run.batch.rollout_size else to(n_minibatches=more),
    )


# What happens inside the networks: the failure signatures of 2506.03404.

PARTS = ("_actor", "_critic", "")
"""A diagnostic is one column each where there are two networks, or one."""
SELDOM = 3
"""Values that will do of what is measured every few iterations."""


def networks(name: str, part: str) -> str:
    """Return a diagnostic's name in words: feature rank of the actor."""
    whose = part.removeprefix("_")
    return name.replace("_", " ") + (f" of the {whose}" if whose else "")


def more_environments(run: History) -> Changes:
    """Return twice the environments at the same rollout, what 2506.03404 found to help."""
    batch = run.batch
    return to(n_envs=2 * batch.n_envs, n_steps=max(1, batch.n_steps // 2))


def signature(run: History) -> Callable[..., Finding]:
    """Return how bad a sign of instability is: FrozenLake8x8-v1's rank falls while it learns."""
    return note if run.learns else warning


def moved(
    run: History, name: str, factor: float, meaning: str, floor: float = 0.0
) -> Finding | None:
    """Return what there is to say where a diagnostic is `factor` times its first value, or beyond.

    `floor` is what the larger of both must reach, so that small numbers do not count.
    """
    for part in PARTS:
        now, first = run.median(name + part, SELDOM), run.early(name + part)
        if now is None or first is None or first <= 0 or max(now, first) < floor:
            continue
        ratio = now / first
        if ratio > factor if factor > 1 else ratio < factor:
            way = "rose" if factor > 1 else "fell"
            return signature(run)(
                ratio,
                factor,
                f"{networks(name, part)} {way} from {first:.3g} to {now:.3g}, {times(ratio)}: "
                f"{meaning}",
                "take smaller steps, or use more environments at the same rollout",
                smaller_steps(run, 0.5) | more_environments(run),
            )
    return None


WEIGHTS_GROWN, KURTOSIS_GROWN, RANK_LEFT = 2.5, 2.0, 0.5
"""Runs that learn: weights of the critic up to 1.9x, kurtosis 0.3x to 2.6x in single measurements,
ranks down to 0.6x of 23. Ranks that begin at 2 to 7 go up and down: only larger ones can fall."""
LARGE_KURTOSIS, LARGE_RANK = 10.0, 8.0


@rule(f"weight norm over {WEIGHTS_GROWN:g} x its first value{LEARNING}", MAYOR_NUMBERS)
def weight_norm(run: History) -> Finding | None:
    """Weights grow where training is unstable, and what they learned becomes hard to change."""
    return moved(run, "weight_norm", WEIGHTS_GROWN, "a sign of unstable training")


@rule(
    f"gradient kurtosis over {KURTOSIS_GROWN:g} x its first value, and over {LARGE_KURTOSIS:g}"
    f"{LEARNING}",
    MAYOR_NUMBERS,
)
def gradient_kurtosis(run: History) -> Finding | None:
    """A few entries outweigh the gradient."""
    return moved(
        run,
        "gradient_kurtosis",
        KURTOSIS_GROWN,
        "a few weights get most of the gradient",
        LARGE_KURTOSIS,
    )


@rule(
    f"feature rank under {RANK_LEFT:g} x its first value of {LARGE_RANK:g} or more", MAYOR_NUMBERS
)
def feature_rank(run: History) -> Finding | None:
    """Features collapse into few directions, and the network loses what it could still learn.

    A note only: it spoke of a fifth of good runs and of no bad one (docs/tasks/advise.md).
    """
    found = moved(
        run, "feature_rank", RANK_LEFT, "features collapse into few directions", LARGE_RANK
    )
    return found and replace(found, severity="note")


DORMANT, DORMANT_MORE = 0.25, 0.1


@rule(
    f"over {DORMANT:.0%} of units dormant, {DORMANT_MORE:.0%} more than at first{LEARNING}",
    MAYOR_NUMBERS,
)
def dormant_units(run: History) -> Finding | None:
    """The network uses less and less of itself."""
    for part in PARTS:
        name = f"dormant_fraction{part}"
        now, first = run.median(name, SELDOM), run.early(name)
        if now is not None and first is not None and now > max(DORMANT, first + DORMANT_MORE):
            return signature(run)(
                now,
                DORMANT,
                f"{now:.0%} of units{' of the ' + part[1:] if part else ''} are dormant "
                f"{run.lately}, {first:.0%} at first: the network uses fewer of its units",
                "take smaller steps, or use more environments at the same rollout",
                smaller_steps(run, 0.5) | more_environments(run),
            )
    return None


NEW_STATES, FEWER_NEW = 0.02, 10.0


@rule(
    f"under {NEW_STATES:.0%} of recent steps reach states not seen before, a "
    f"{FEWER_NEW:.0f}th of the first rollout's or less, and the return is no better than at the "
    "start",
    MAYOR_NUMBERS,
)
def state_coverage(run: History) -> Finding | None:
    """The policy revisits known states, and has not found what it needs there."""
    places, coverage = run.column("state_coverage")
    steps = [run.at("env_steps", place) or 0.0 for place in places]
    if len(steps) < SELDOM or run.has_progressed is not False or steps[-1] <= steps[-2]:
        return None
    seen = [a * b for a, b in zip(coverage, steps, strict=True)]
    new = max(0.0, seen[-1] - seen[-2]) / (steps[-1] - steps[-2])
    if new >= NEW_STATES or new > coverage[0] / FEWER_NEW:
        return None
    return note(
        new,
        NEW_STATES,
        f"{new:.1%} of recent steps reach states not seen before, {coverage[0]:.0%} at first, and "
        "the return is no better than then: the policy revisits known states",
        "explore more, or use more environments at the same rollout",
        more_environments(run) if run.algorithm.explores else more_entropy(run),
    )


# How the batch is cut.


@rule("REINFORCE with under 1,000 rows per update", NOTES)
def reinforce_rows(run: History) -> Finding | None:
    """Whole returns are noisy: they need many rows."""
    rows = run.batch.rollout_size
    if not run.algorithm.whole_returns or rows >= 1000:
        return None
    return warning(
        rows,
        1000,
        f"{rows:,} rows per update, under 1,000: whole returns are too noisy for so few",
        "collect larger rollouts",
        to(n_envs=math.ceil(1000 / run.batch.n_steps)),
    )


SMALL, PER_ACTION = 32, 10


@rule(
    f"minibatches under {SMALL} rows (a note if under {PER_ACTION} x the action dimensions)",
    NOTES,
)
def small_minibatch(run: History) -> Finding | None:
    """Gradients of so few rows are mostly noise."""
    rows, batch = run.batch.minibatch_size, run.batch
    size = run.actions.size if run.actions is not None else 0
    least = max(SMALL, PER_ACTION * size)
    if rows >= least:
        return None
    grave = rows < SMALL and cuts(run)
    why = f"{PER_ACTION} x {size} actions" if PER_ACTION * size > SMALL else f"{SMALL} to 256"
    fewer = max(1, batch.rollout_size // (2 * least))
    return (warning if grave else note)(
        rows,
        least,
        f"minibatches of {rows} rows, under {least} ({why} are usual): gradients are mostly noise",
        "split rollouts into fewer minibatches" if cuts(run) else "collect larger rollouts",
        to(n_minibatches=min(fewer, batch.n_minibatches))
        if cuts(run) and batch.rollout_size >= least
        else to(n_envs=math.ceil(least / batch.n_steps) * batch.n_minibatches),
    )


FEWEST, MOST = 4, 32


@rule(f"under {FEWEST} minibatches a rollout", NOTES)
def few_minibatches(run: History) -> Finding | None:
    """A rollout gives few gradient steps."""
    count, batch = run.batch.n_minibatches, run.batch
    if count >= FEWEST or not cuts(run) or batch.rollout_size < 2 * SMALL:
        return None
    return note(
        count,
        FEWEST,
        f"{counted(count, 'minibatch', 'minibatches')} a rollout of {batch.rollout_size:,} rows, "
        f"where {FEWEST} to {MOST} are usual: few gradient steps for the data",
        "split rollouts into more minibatches",
        to(n_minibatches=min(FEWEST, batch.rollout_size // SMALL)),
    )


@rule(f"over {MOST} minibatches a rollout", NOTES)
def many_minibatches(run: History) -> Finding | None:
    """Gradient steps late in an iteration follow a policy that is no longer the one that acted."""
    count = run.batch.n_minibatches
    if count <= MOST or not cuts(run):
        return None
    return note(
        count,
        MOST,
        f"{count} minibatches a rollout, where {FEWEST} to {MOST} are usual: many steps on data of "
        "one policy",
        "split rollouts into fewer minibatches",
        to(n_minibatches=MOST),
    )


@rule("minibatches of whole environments that hold under 2 of them", NOTES)
def lone_environments(run: History) -> Finding | None:
    """A minibatch from one trajectory is as correlated as it can be."""
    each = run.batch.n_envs / run.batch.n_minibatches
    if run.recipe.objective.minibatches_by != "envs" or each >= 2:
        return None
    return warning(
        each,
        2,
        f"minibatches hold {each:.2g} environments, under 2: each comes from one trajectory",
        "draw minibatches from single rows of all environments",
        to(minibatches_by="samples"),
    )


FEW_ENVS, FEW_ENVS_DUAL = 4, 8


@rule(
    f"under {FEW_ENVS} environments, or under {FEW_ENVS_DUAL} with separate networks",
    f"{NOTES}; {MAYOR}",
)
def few_environments(run: History) -> Finding | None:
    """Rows of few environments resemble each other; separate networks need more of them."""
    batch, dual = run.batch, run.recipe.model.architecture == "dual"
    least = FEW_ENVS_DUAL if dual else FEW_ENVS
    if batch.n_envs >= least:
        return None
    wide = max(1, batch.rollout_size // FEW_ENVS_DUAL)
    return note(
        batch.n_envs,
        least,
        f"{counted(batch.n_envs, 'environment')}, under {least}"
        f"{' with separate networks' if dual else ''}: rows of one trajectory resemble each other",
        "use more environments and shorter rollouts of the same size",
        to(n_envs=FEW_ENVS_DUAL, n_steps=wide),
    )


MANY_EPOCHS = 10


@rule(f"over {MANY_EPOCHS} epochs with under 32 environments", MAYOR)
def many_epochs(run: History) -> Finding | None:
    """More epochs without more environments fit the rollout instead of the task."""
    batch = run.batch
    if batch.n_epochs <= MANY_EPOCHS or batch.n_envs >= 32:
        return None
    return note(
        batch.n_epochs,
        MANY_EPOCHS,
        f"{batch.n_epochs} epochs on rollouts of {counted(batch.n_envs, 'environment')}, over "
        f"{MANY_EPOCHS}: more epochs without more environments fit the rollout, not the task",
        "take fewer epochs, or use more environments",
        to(n_epochs=MANY_EPOCHS),
    )


SWING = 10.0


@rule(
    f"the advantages' standard deviation goes up and down by {SWING:.0f} x from one iteration to "
    "the next",
    PAPER,
)
def advantage_swings(run: History) -> Finding | None:
    """Normalised by one rollout's deviation, advantages mean another thing in every iteration."""
    found = [each for each in run.recent("advantage_std") if each > 0]
    if len(found) < 2 or run.recipe.objective.advantage_normalization in ("none", "ewma"):
        return None
    steps = list(pairwise(found))
    swing = min(max(b / a for a, b in steps), max(a / b for a, b in steps))
    if swing < SWING:
        return None
    return note(
        swing,
        SWING,
        f"the advantages' standard deviation goes up and down by {times(swing)} from one iteration "
        f"to the next, {SWING:.0f}x or more: normalised, advantages change their scale",
        "normalise them over more iterations",
        to(advantage_normalization="ewma", advantage_decay=0.9),
    )


CLIP_LOW, KL_LOW = 0.003, 1e-4


@rule(
    f"clip fraction under {CLIP_LOW:.1%} before the step size is annealed, with something left "
    "to learn",
    PAPER,
)
def clip_low(run: History) -> Finding | None:
    """Clipping hardly ever holds a step back: there is room for a larger rollout."""
    clipped = run.median("clip_fraction")
    if clipped is None or clipped >= CLIP_LOW or not clips(run):
        return None
    if run.steps_annealed or run.is_settled or run.reward_unseen:
        return None
    decay = run.recipe.objective.proximal_decay
    averages = run.algorithm.proximal == "average"
    return note(
        clipped,
        CLIP_LOW,
        f"clip fraction {clipped:.2%} {run.lately}, well under 1%: the rollout could be larger, or "
        "the steps",
        "average the proximal policy over more steps" if averages else "use more environments",
        to(proximal_decay=round(1 - (1 - decay) / 4, 5))
        if averages
        else to(n_envs=2 * run.batch.n_envs),
    )


@rule(
    f"approximate KL under {KL_LOW:g} at first and now, and the return has not risen by half",
    OURS,
)
def kl_low(run: History) -> Finding | None:
    """The policy hardly moves."""
    kl = max((run.median("approx_kl"), run.early("approx_kl")), key=lambda each: each or 0.0)
    if kl is None or kl >= KL_LOW or run.batch.grad_steps_per_iteration == 1:
        return None
    if run.gain is None or run.learns or run.is_settled or run.reward_unseen:
        return None
    if entropy_collapse(run) is not None or max(run.values("approx_kl")) > KL_HIGH:
        return None  # A policy that has leapt and stands still needs no larger steps.
    return warning(
        kl,
        KL_LOW,
        f"approximate KL {kl:.1g} {run.lately}, under {KL_LOW:g}: the policy hardly moves",
        "take larger steps",
        step_size(run, 10),
    )


# Evaluation and time.


@rule("evaluations are asked for, and none falls into the budget but that of the start", OURS)
def never_evaluated(run: History) -> Finding | None:
    """The budget is spent before the first evaluation."""
    every, total = run.recipe.evaluation.eval_every, run.recipe.total_timesteps
    if every <= total:
        return None
    return warning(
        every,
        total,
        f"an evaluation every {every:,} environment steps, and a budget of {total:,}: none but "
        "that of the untrained policy",
        "evaluate at parts of the budget",
        to(eval_every=0, eval_marks=10),
    )


EVALUATION_SHARE = 0.25


@rule(
    f"evaluations take over {EVALUATION_SHARE:.0%} of the time, and training's return is no better "
    "than at the start",
    NOTES,
)
def early_evaluation(run: History) -> Finding | None:
    """There is nothing to evaluate before training shows something."""
    seconds = sum(float(row.get("seconds") or 0) for row in run.evaluations)
    training = run.last("seconds")
    if not seconds or not training or run.has_progressed is not False:
        return None
    share = seconds / (seconds + training)
    if share <= EVALUATION_SHARE:
        return None
    marks = run.recipe.evaluation.eval_marks
    return note(
        share,
        EVALUATION_SHARE,
        f"evaluations took {share:.0%} of the time, and the return in training is no better than "
        "at the start: there is nothing to evaluate yet",
        "evaluate less often",
        to(eval_marks=max(1, marks // 4))
        if marks
        else to(eval_every=4 * max(1, run.recipe.evaluation.eval_every)),
    )


@rule(f"past {LATE:.0%} of the budget no episode has ended", OURS)
def no_episodes(run: History) -> Finding | None:
    """Without an end there is no return to look at."""
    if run.part < LATE or run.last("episodes") != 0:
        return None
    each = run.env_steps / run.batch.n_envs
    return note(
        0,
        1,
        f"no episode has ended in {each:,.0f} steps of each of "
        f"{counted(run.batch.n_envs, 'environment')}: the run has no return to judge it by",
        "use fewer environments, or check that episodes end",
        to(n_envs=max(1, run.batch.n_envs // 4)) if run.batch.n_envs > 1 else NOTHING,
    )


TIMES = ("env_seconds", "acting_seconds", "learning_seconds", "other_seconds")
BOUND = {
    "env_seconds": (
        0.7,
        "environments take {share:.0%} of the time: learning waits for them",
        "step them in parallel; isobatch advise --throughput shows how far more of them help",
    ),
    "acting_seconds": (
        0.5,
        "choosing actions takes {share:.0%} of the time: each step asks the network for few rows",
        "use more environments",
    ),
    "learning_seconds": (
        0.95,
        "learning takes {share:.0%} of the time: environments are nearly free",
        "collect more of them for the same updates, or take fewer epochs",
    ),
    "other_seconds": (
        0.5,
        "{share:.0%} of the time is neither collecting nor learning: files, or other runs in one "
        "process",
        "write to a local disk; --profile says where the time goes",
    ),
}


@rule(
    "environments take over 70% of the time, acting over 50%, learning over 95%, or the rest over "
    "50%",
    OURS,
)
def throughput(run: History) -> Finding | None:
    """One part of an iteration takes nearly all of its time."""
    for name, (most, text, advice) in BOUND.items():
        share = run.share(name, TIMES)
        if share is None or share <= most or run.rows < 5:
            continue
        change = {
            "acting_seconds": to(n_envs=2 * run.batch.n_envs),
            "learning_seconds": to(n_epochs=max(1, run.batch.n_epochs // 2)),
        }.get(name, NOTHING)
        return note(share, most, f"{text.format(share=share)} ({run.lately})", advice, change)
    return None
