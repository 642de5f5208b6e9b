"""isobatch eval."""

from __future__ import annotations

from pathlib import Path

from isobatch.cli.flags import Parser, add_env_flag, whole_number
from isobatch.errors import UserError


def evaluate(arguments: list[str]) -> int:
    """Play episodes with a run's policy."""
    parser = Parser(
        prog="isobatch eval", description="Play whole episodes in environments training never saw."
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--episodes", type=whole_number, default=20, metavar="N", help="default: 20"
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="default: 0")
    add_env_flag(parser)
    parser.add_argument(
        "--deterministic", action="store_true", help="take the most likely action, draw none"
    )
    parsed = parser.parse_args(arguments)
    if parsed.episodes < 1:
        raise UserError(f"--episodes must be at least 1, got {parsed.episodes}")

    from isobatch.run import policy

    result = policy.evaluate(
        parsed.run,
        parsed.episodes,
        deterministic=parsed.deterministic,
        seed=parsed.seed,
        env=parsed.env,
    )
    print(
        f"return {result.mean:.2f} +- {result.std:.2f} over {len(result.returns)} episodes "
        f"(from {min(result.returns):.2f} to {max(result.returns):.2f}), "
        f"mean length {sum(result.lengths) / len(result.lengths):.1f}"
    )
    return 0
