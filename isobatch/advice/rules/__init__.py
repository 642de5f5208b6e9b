"""The rules of advice: each a small function from a run's history to what it finds, or None.

To add one, write a function under `@rule(when, source)` in the file it belongs to:

    @rule("entropy over 10", OURS)
    def entropy_high(run: History) -> Finding | None:
        entropy = run.median("entropy")
        if entropy is None or entropy <= 10:
            return None
        return note(entropy, 10, f"entropy {entropy:.2g}, over 10: ...", "...", to(ent_coef=0.0))

name it in the list below, and add a run that breaks it to tests/advice/test_rules.py. A rule asks
for columns by name and gets None where they are not there, so it needs no care for other versions,
algorithms or short runs.
"""

from isobatch.advice.rules import batch, budget, evaluation, learning, networks, policy, value
from isobatch.advice.rules.rule import Rule

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    learning.diverging,
    learning.reward_never_seen,
    learning.far_from_preset,
    policy.kl_high,
    policy.clip_high,
    policy.entropy_collapse,
    policy.entropy_bonus,
    value.value_scale,
    value.value_weight,
    value.value_unlearned,
    learning.return_fallen,
    learning.no_progress,
    policy.importance_ess,
    policy.ratios_capped,
    policy.target_kl_stops,
    budget.few_updates,
    budget.long_episodes,
    budget.short_rollout,
    budget.beyond_noise,
    networks.weight_norm,
    networks.gradient_kurtosis,
    networks.feature_rank,
    networks.dormant_units,
    networks.state_coverage,
    batch.reinforce_rows,
    batch.small_minibatch,
    batch.few_minibatches,
    batch.many_minibatches,
    batch.lone_environments,
    batch.few_environments,
    batch.many_epochs,
    batch.advantage_swings,
    policy.clip_low,
    policy.kl_low,
    evaluation.never_evaluated,
    evaluation.early_evaluation,
    evaluation.no_episodes,
    evaluation.throughput,
)
"""In order of importance."""
