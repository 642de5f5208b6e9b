"""isobatch check."""

from __future__ import annotations

from pathlib import Path

from isobatch.cli.flags import Parser
from isobatch.errors import UserError
from isobatch.text import columns, counted, say


def check(arguments: list[str]) -> int:
    """Say whether a run, or every run of a study, is intact."""
    parser = Parser(
        prog="isobatch check",
        description="Read every file of a run or a study and compare it with its hash, its "
        "checkpoint and its recipe. Nothing is changed. The exit code is 0 if all is intact, "
        "otherwise 1.",
    )
    parser.add_argument("run", type=Path, help="run or study directory")
    parsed = parser.parse_args(arguments)
    if (parsed.run / "study.json").exists():
        return _study(parsed.run)
    return _run(parsed.run)


def _run(path: Path) -> int:
    from isobatch.run.examine import examine

    found = examine(path)
    rows = [("ok" if each.is_whole else "damaged", each.name, each.said) for each in found]
    for line in columns(rows):
        say(line)
    wrong = sum(1 for each in found if not each.is_whole)
    say(f"{path}: {counted(wrong, 'damaged file') if wrong else 'intact'}")
    return 1 if wrong else 0


def _study(root: Path) -> int:
    from isobatch.run.examine import examine
    from isobatch.study.results import Results

    results, wrong = Results.load(root), 0
    for cell, record in results.records.items():
        problems = [record.problem] if record.outcome in ("damaged", "failed") else []
        if record.path.exists():
            try:
                found = examine(record.path)
                problems += [f"{each.name}: {each.said}" for each in found if not each.is_whole]
            except UserError as error:
                problems.append(str(error))
        for problem in problems:
            say(f"damaged: {cell}: {problem}")
        wrong += bool(problems)
    done, runs = len(results.having("done")), len(results.records)
    state = f"{counted(wrong, 'run')} damaged or failed" if wrong else "intact"
    say(f"{root}: {done} of {counted(runs, 'run')} done; {state}")
    return 1 if wrong else 0
