"""Rules about evaluation and time."""

from __future__ import annotations

from isobatch.advice.finding import Finding
from isobatch.advice.history import LATE, History
from isobatch.advice.rules.rule import NOTES, NOTHING, OURS, note, rule, to, warning
from isobatch.text import counted


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
