"""Train the same cases with Isobatch and its peers, by turns, and compare.

    python -m benchmarks.peers.run --cases cartpole-8x128 --peers isobatch sb3 --repeats 5

Every training is a fresh process in its library's own Python. In a repeat all peers have a turn,
and the next repeat goes through them backwards. Ratios are taken within a repeat, and their median
and range reported: a machine that slows down half-way slows all of them down.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.record import request
from benchmarks.peers.summary import summarize, table

ROOT = Path(__file__).parents[2]
FIELDS = ("start_up_seconds", "cold_seconds")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Peer:
    """A library, or one way to use it."""

    module: str
    """Its adapter."""
    python: str = "peers"
    """Which of the Pythons runs it."""
    options: dict[str, Any] = field(default_factory=dict)
    together: bool = False
    """Whether one process trains all seeds of a case at once."""
    only_seeds: bool = False
    """Whether it differs from others only where a case has several seeds."""
    again: bool = False
    """Whether the same was trained before, untimed, and what was compiled then is found again."""


PEERS = {
    "isobatch": Peer("isobatch", "own", together=True),
    "isobatch-again": Peer("isobatch", "own", {"compile": "on"}, together=True, again=True),
    "isobatch-compiled": Peer("isobatch", "own", {"compile": "on"}),
    "isobatch-processes": Peer("isobatch", "own", only_seeds=True),
    "sb3": Peer("sb3"),
    "torchrl": Peer("torchrl"),
    "rejax": Peer("rejax", together=True),
    "cleanrl": Peer("cleanrl", "cleanrl"),
}
"""Isobatch in its four ways: as it comes; with the update compiled however short the run, for the
first time and for the second; and, for several seeds, in processes side by side instead of one
process for all."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def turns(names: list[str], repeats: int) -> list[list[str]]:
    """Return the order of each repeat: forwards and backwards by turns."""
    return [names if repeat % 2 == 0 else names[::-1] for repeat in range(repeats)]


def shares(seeds: list[int], processes: int) -> list[list[int]]:
    """Return the seeds dealt out to so many processes, none of them empty."""
    return [seeds[first::processes] for first in range(min(processes, len(seeds)))]


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def start(
    python: str, peer: Peer, case: Case, seeds: list[int], errors: IO[str], env: dict[str, str]
) -> subprocess.Popen[str]:
    """Start one adapter; its clock begins here."""
    options = peer.options | {"together": peer.together}
    words = [python, "-m", f"benchmarks.peers.{peer.module}", request(case, seeds, options)]
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def measure(python: str, peer: Peer, case: Case) -> dict[str, Any]:
    """Train a case with a peer and return what its processes say together.

    Seeds that a library cannot train at once are dealt out to a process for each core, of one
    thread each. What an earlier process compiled is not found again, but for peers of that kind.
    """
    if peer.only_seeds and case.n_seeds == 1:
        return {"cannot": "with one seed the same as isobatch"}
    seeds = list(range(1, case.n_seeds + 1))
    parts = [seeds] if peer.together else shares(seeds, cores())
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryDirectory() as cache:
        env = {"TORCHINDUCTOR_CACHE_DIR": cache, "ISOBATCH_CACHE": f"{cache}/isobatch"}
        if len(parts) > 1:
            env |= dict.fromkeys(THREADS, "1")
        for _ in range(1 + peer.again):
            children = [start(python, peer, case, part, errors, env) for part in parts]
            outputs = [child.communicate()[0] for child in children]
            if any(child.returncode for child in children):
                errors.seek(0)
                return {"cannot": f"failed: {last_line(errors.read())}"}
    return combine([json.loads(last_line(output)) for output in outputs])


def combine(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what processes that ran side by side measured, as one.

    Their rates and their memory add up; the last to start and the last to end decide the times.
    """
    for each in found:
        if "cannot" in each:
            return each
    compiling = [each["compile_seconds"] for each in found if each["compile_seconds"] is not None]
    steps = sum(each["env_steps"] for each in found)
    times = {name: max(each[name] for each in found) for name in FIELDS}
    returns = [value for each in found for value in each["returns"]]
    reached = [value for value in returns if value is not None]
    return {
        **times,
        "compile_seconds": max(compiling) if compiling else None,
        "env_steps": steps,
        "warm_rate": sum(each["warm_steps"] / each["warm_seconds"] for each in found),
        "cold_rate": steps / times["cold_seconds"],
        "peak_mb": sum(each["peak_mb"] for each in found),
        "return": sum(reached) / len(reached) if reached else None,
        "returns": returns,
        "versions": found[0]["versions"],
    }


def words_of(found: dict[str, Any]) -> str:
    """Return a measurement in a few words."""
    if "cannot" in found:
        return f"cannot: {found['cannot']}"
    reached = "none" if found["return"] is None else f"{found['return']:.4g}"
    return (
        f"{found['warm_rate']:,.0f} steps/s warm, {found['cold_seconds']:.1f} s in all, "
        f"{found['peak_mb']:,.0f} MB, return {reached}"
    )


def compare(
    name: str, case: Case, names: list[str], pythons: dict[str, str], checkout: Path | None
) -> list[dict[str, Any]]:
    """Measure a case with all peers; who cannot do it is asked once."""
    repeats, unable = [], {}
    for order in turns(names, case.repeats):
        repeat = {}
        for who in order:
            if who not in unable:
                peer = PEERS[who]
                if peer.module == "cleanrl":
                    peer = replace(peer, options={"checkout": str(checkout)})
                found = measure(pythons[peer.python], peer, case)
                print(f"{name} {who}: {words_of(found)}", file=sys.stderr, flush=True)
                if "cannot" in found:
                    unable[who] = found
                repeat[who] = found
            else:
                repeat[who] = unable[who]
        repeats.append(repeat)
    return repeats


def commit(checkout: Path) -> str | None:
    """Return the commit of a checkout; None where it is not git's."""
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    add("--peers", nargs="+", choices=PEERS, metavar="PEER", help="default: all there are")
    add("--repeats", type=int, help="default: the case's own")
    add("--steps", type=int, help="environment steps instead of the case's own")
    add("--cleanrl", type=Path, metavar="PATH", help="a checkout of CleanRL; without it, none")
    add("--python", default=str(ROOT / ".venv-peers/bin/python"), help="that of the peers")
    add("--cleanrl-python", default=str(ROOT / ".venv-cleanrl/bin/python"), help="that of CleanRL")
    add("--out", type=Path, help="write everything measured to this JSON file")
    return parser


def main() -> None:
    """Compare, print the table, and write it all down after every case."""
    args = arguments().parse_args()
    names = args.peers or [name for name in PEERS if name != "cleanrl" or args.cleanrl]
    if "cleanrl" in names and not args.cleanrl:
        raise SystemExit("cleanrl needs --cleanrl PATH")
    checkout = args.cleanrl and args.cleanrl.resolve()
    pythons = {"own": sys.executable, "peers": args.python, "cleanrl": args.cleanrl_python}
    report: dict[str, Any] = {
        "measured": datetime.now(UTC).date().isoformat(),
        "machine": {"python": platform.python_version(), "cores": cores()},
        "cleanrl": commit(checkout) if checkout else None,
        "cases": {},
    }
    for name in args.cases:
        changes = {"repeats": args.repeats, "total_timesteps": args.steps}
        case = replace(CASES[name], **{key: value for key, value in changes.items() if value})
        repeats = compare(name, case, names, pythons, checkout)
        summary = summarize(repeats)
        report["cases"][name] = {
            "title": case.title,
            "case": case.to_json(),
            "summary": summary,
            "repeats": repeats,
        }
        print(f"\n{case.title}\n\n{table(summary)}\n", flush=True)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
