"""Every command and every program of the pages runs, in order, at a tiny budget.

Each page has a folder of its own, with the files that it shows by name and what the pages made
that it builds on. The pages on extending are in `test_extending`.
"""

import re
import shutil

import pytest
from doc_blocks import DOCS, OF_OTHERS, PAGES, ROOT, SHELLS, all_blocks, blocks, commands
from tiny import shortened

NOT_RUN = {
    "make": "installs into .venv and trains or tests for minutes to hours: .ci/run does that",
    "pip": "installs from a network: .ci/wheel-check does that",
    ".": "the shell's own: activates the environment that make has installed",
}
"""Commands that are not run, by their first word, and why."""
BUILDS_ON = {
    "tasks/probe.md": ["getting-started.md"],
    "tasks/query.md": ["getting-started.md", "tasks/study.md"],
    "tasks/report.md": ["getting-started.md"],
    "tasks/resume-evaluate.md": ["getting-started.md"],
}
"""Pages whose commands take runs that other pages made."""
LONG = {
    "tasks/algorithm.md", "tasks/probe.md", "tasks/query.md", "tasks/resume-evaluate.md",
    "tasks/workers.md",
}  # fmt: skip
"""Pages that take longest and repeat most of others, or of tests: `make test-faults` does what they
say."""
WITH_COMMANDS = [
    page for page in PAGES if "extending" not in page.parts and blocks(page, *SHELLS, "python")
]


def name(page):
    return str(page.relative_to(DOCS if DOCS in page.parents else ROOT))


@pytest.fixture(scope="module")
def done(launch, tmp_path_factory):
    """Return a function that does what a page says, once: -> its folder."""
    folders = {}

    def do(page):
        if page not in folders:
            folder = folders[page] = tmp_path_factory.mktemp(page.stem)
            for other in BUILDS_ON.get(name(page), []):
                shutil.copytree(do(DOCS / other), folder, dirs_exist_ok=True)
            _do(launch, page, folder)
        return folders[page]

    return do


def _do(launch, page, folder):
    """Write a page's files, then run its commands and programs in order."""
    for file, text in OF_OTHERS.items():
        (folder / file).write_text(text, encoding="utf-8")
    for number, block in enumerate(blocks(page, *SHELLS, "python", "toml")):
        if block.language == "toml":
            if block.title:
                (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            program = block.title or f"program-{number}.py"
            (folder / program).write_text(block.text, encoding="utf-8")
            launch(folder, ["python", program], tiny=True)
        else:
            for words in commands(block):
                if words[0] not in NOT_RUN:
                    launch(folder, shortened(words, folder), tiny=True)


def parameter(page):
    marks = [pytest.mark.long] if name(page) in LONG else []
    return pytest.param(page, id=name(page), marks=marks)


@pytest.mark.parametrize("page", list(map(parameter, WITH_COMMANDS)))
def test_what_a_page_says_can_be_done(page, done):
    done(page)


def test_what_is_not_run_is_still_there():
    first = {words[0] for block in all_blocks(*SHELLS) for words in commands(block)}
    assert set(NOT_RUN) <= first
    assert set(BUILDS_ON) | LONG <= set(map(name, WITH_COMMANDS))
    assert "README.md" not in BUILDS_ON, "each of its commands uses what those before it made"


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    shown = [words for block in all_blocks(*SHELLS) for words in commands(block)]
    for words in shown:
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets
