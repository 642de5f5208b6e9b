"""isobatch eval."""

from __future__ import annotations

from pathlib import Path

from isobatch.cli.flags import Parser, add_env_flag, whole_between
from isobatch.plain import LARGEST
from isobatch.text import counted, say

MOST_EPISODES = 1_000_000


def evaluate(arguments: list[str]) -> int:
    """Evaluate a run's policy."""
    parser = Parser(
        prog="isobatch eval",
        description="Evaluate a run's policy on full episodes, with environment seeds that "
        "training did not use.",
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--episodes",
        type=whole_between(1, MOST_EPISODES),
        default=20,
        metavar="N",
        help="number of episodes (default: 20)",
    )
    parser.add_argument(
        "--seed",
        type=whole_between(0, LARGEST - 1),
        default=0,
        metavar="N",
        help="evaluation seed (default: 0)",
    )
    parser.add_argument(
        "--best",
        action="store_true",
        help="the policy with the highest evaluation while training, instead of the last",
    )
    add_env_flag(parser)
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="take the most likely action instead of sampling",
    )
    parsed = parser.parse_args(arguments)

    from isobatch.run import policy

    result = policy.evaluate(
        parsed.run,
        parsed.episodes,
        deterministic=parsed.deterministic,
        seed=parsed.seed,
        best=parsed.best,
        env=parsed.env,
    )
    say(
        f"return {result.mean:.2f} +- {result.std:.2f} (mean and standard deviation) over "
        f"{counted(len(result.returns), 'episode')} with {result.actions} actions, from "
        f"{min(result.returns):.2f} to {max(result.returns):.2f}; mean length "
        f"{sum(result.lengths) / len(result.lengths):.1f} steps"
    )
    return 0
