"""isobatch export."""

from __future__ import annotations

from pathlib import Path

from isobatch.cli.flags import Parser
from isobatch.text import say, wrapped


def export(arguments: list[str]) -> int:
    """Write a run's policy as another library saves one."""
    parser = Parser(
        prog="isobatch export",
        description="Write a run's policy as a zip that PPO.load or A2C.load of Stable-Baselines3 "
        "takes, and its statistics of observations and rewards as vecnormalize.pkl beside it. "
        "Needs the package stable-baselines3.",
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--to", choices=("sb3",), required=True, help="library: sb3")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: sb3/model.zip in the run directory"
    )
    parser.add_argument(
        "--best",
        action="store_true",
        help="the policy with the highest evaluation while training, instead of the last",
    )
    parsed = parser.parse_args(arguments)

    from isobatch import weights

    done = weights.to_sb3(parsed.run, parsed.out, best=parsed.best)
    say(f"saved to {done.path}; load it with")
    say(f"stable_baselines3.{done.algorithm}.load({str(done.path)!r})")
    if done.normalizer is not None:
        say(f"observations and rewards: VecNormalize.load({str(done.normalizer)!r}, env)")
    for line in done.missing:
        say("\n".join(wrapped(f"! {line}.")))
    return 0
