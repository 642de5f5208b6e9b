"""Rules about the run as a whole: what keeps it from learning."""

from __future__ import annotations

from isobatch.advice.finding import Finding
from isobatch.advice.history import LATE, History
from isobatch.advice.rules.changes import FAR, far_setting, more_entropy, smaller_steps
from isobatch.advice.rules.policy import entropy_collapse, kl_low
from isobatch.advice.rules.rule import NOTES, NOTHING, OURS, note, problem, rule, to, warning
from isobatch.advice.rules.value import value_scale
from isobatch.text import counted, number

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
