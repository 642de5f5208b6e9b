"""The diagnostics a page draws: titles, definitions, sources, and which columns hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Diagnostic(NamedTuple):
    """A number of networks, gradients or data, as its reader wants to know it."""

    title: str
    definition: str
    source: str


DIAGNOSTICS = {
    "weight_norm": Diagnostic(
        "Weight norm",
        "Euclidean norm of all parameters. Rising: instability.",
        "Mayor et al. 2025 (arXiv 2506.03404)",
    ),
    "gradient_kurtosis": Diagnostic(
        "Gradient kurtosis",
        "Pearson's kurtosis of log(|g| + 1e-8) over the entries of a batch's gradient; 3 for a "
        "normal law. Rising: instability.",
        "Mayor et al. 2025 (arXiv 2506.03404)",
    ),
    "gradient_norm_kurtosis": Diagnostic(
        "Kurtosis of gradient norms",
        "Pearson's kurtosis of the norms of single samples' gradients, of 128 rows: high where a "
        "few samples outweigh the batch.",
        "Garg et al. 2021",
    ),
    "policy_variance": Diagnostic(
        "Policy variance",
        "Variance over the batch of the probability (or density) of the actions taken.",
        "named in Mayor et al. 2025 (arXiv 2506.03404), the formula is ours",
    ),
    "importance_ess": Diagnostic(
        "Importance ESS",
        "Effective sample size of the importance weights, as a fraction of the batch; 1 on-policy.",
        "Kong 1992",
    ),
    "feature_rank": Diagnostic(
        "Feature rank",
        "Singular values of the last hidden layer's features that hold 99% of their squared sum. "
        "Falling: features collapse.",
        "Mayor et al. 2025 (arXiv 2506.03404)",
    ),
    "srank": Diagnostic(
        "srank",
        "Singular values of the features that hold 99% of their sum.",
        "Kumar et al. 2021",
    ),
    "effective_rank": Diagnostic(
        "Effective rank",
        "Exponential of the entropy of the features' normalised singular values.",
        "Roy and Vetterli 2007",
    ),
    "dormant_fraction": Diagnostic(
        "Dormant units",
        "Share of units whose mean absolute activation is at most 0.025 of their layer's mean. "
        "Rising: the network uses fewer of its units.",
        "Sokar et al. 2023",
    ),
    "state_coverage": Diagnostic(
        "State coverage", "Distinct observations per environment step, floats in bins.", "ours"
    ),
    "visited_entropy": Diagnostic(
        "Visited-state entropy", "Entropy of the visits to states, in nats.", "ours"
    ),
}


def parts_of(name: str, columns: Iterable[str]) -> dict[str, str]:
    """Return the columns of a diagnostic, each with what of the agent it is of: actor, critic."""
    return {
        column: column[len(name) + 1 :].replace("_", " ") or "all"
        for column in columns
        if column == name or column.startswith(f"{name}_")
    }
