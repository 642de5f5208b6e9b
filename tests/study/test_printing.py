import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from busy import soon
from fakes import finish_study

import isobatch
from isobatch.cli import main
from isobatch.run.live import LiveView
from isobatch.study.design import Study
from isobatch.study.driver import Watch
from isobatch.study.live import Table
from isobatch.study.queue import Queue
from isobatch.text import plain, say

PACKAGE = Path(isobatch.__file__).parent
ESCAPE = "\x1b]0;owned\x07\x1b[31m\x9b1m\r"
STUDY = Study(
    name="evil",
    title="title [red]",
    note="note",
    envs=("CartPole-v1",),
    budget=400,
    seeds=(1, 2),
    arms={"arm [bold]": {"n_envs": 2, "n_steps": 8}, "ärm": {"n_envs": 4, "n_steps": 4}},
)


@pytest.fixture
def study(tmp_path):
    """A study with a run whose reason to fail would command the terminal; no name can."""
    queue = finish_study(tmp_path / "study", STUDY, lambda cell: 100.0 * cell.seed)
    cell = STUDY.cells[0]
    queue._file(cell, "done").unlink()
    queue._file(cell, "failed").write_text(json.dumps({"kind": "failed", "reason": ESCAPE}))
    return queue.root


def _is_harmless(text: str) -> bool:
    return not any(mark in text for mark in "\x1b\x07\x9b\r")


def test_all_that_is_printed_is_printed_in_one_place():
    printing = [
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert printing == ["text.py"]


def test_lines_stay_lines_and_control_characters_are_spelled_out(capsys):
    say(f"a\tb\n{ESCAPE}é")
    assert capsys.readouterr().out == "a\tb\n\\x1b]0;owned\\x07\\x1b[31m\\x9b1m\\ré\n"
    assert plain("\u202e") == "\\u202e"


def _words(command, study):
    return {
        "report": ["report", study],
        "study": ["study", study.parent / "evil.toml", "--out", study, "--quiet"],
        "query": ["query", 'select arm as "\x1b[31m", arm from runs', "--runs", study],
        "failing query": ["query", "select '\x1b[31m' from nowhere\x1b", "--runs", study],
        "show": ["show", f"nothing{ESCAPE}"],
        "help": ["train", "--recipe", study.parent / "recipe.toml", "--help"],
    }[command]


@pytest.mark.parametrize("command", ["report", "study", "query", "failing query", "show", "help"])
def test_no_command_passes_control_characters_on(study, command, capsys):
    from isobatch.study.report import reproduce

    design = reproduce.design(STUDY)
    evil = design.replace('"title [red]"', json.dumps(f"title {ESCAPE}"))
    assert evil != design
    (study.parent / "evil.toml").write_text(evil)
    # JSON's way to write a text is TOML's too.
    recipe = isobatch.preset("CartPole-v1").to_toml()
    evil = recipe.replace('device = "auto"', f"device = {json.dumps(ESCAPE)}")
    assert evil != recipe
    (study.parent / "recipe.toml").write_text(evil)
    try:
        main([str(word) for word in _words(command, study)])
    except SystemExit:
        assert command == "help"
    said = capsys.readouterr()
    assert said.out + said.err
    assert _is_harmless(said.out + said.err)


def test_the_live_table_passes_no_names_control_characters_on(study, capsys):
    view = Table()
    view.start(Queue.open(study))
    view.show(Watch(Queue.open(study)).progress())
    view.note(f"a job ended: {ESCAPE}")
    view.stop()
    out = capsys.readouterr().out
    assert out.count("\\x1b") >= 2
    assert _is_harmless(out)


def test_the_live_view_passes_no_control_characters_on(capsys):
    bar = LiveView()
    bar.start(isobatch.preset("CartPole-v1"), f"runs/{ESCAPE}[red]", 0)
    bar.note(f"{ESCAPE}[bold]")
    bar.stop()
    out = capsys.readouterr().out
    assert "[red]" in out
    assert "[bold]" in out
    assert _is_harmless(out)


def _in_a_process(words, **settings):
    return subprocess.run(
        [sys.executable, "-m", "isobatch", *map(str, words)],
        capture_output=True,
        env=os.environ | settings,
        timeout=soon(120),
    )


@pytest.mark.parametrize("command", ["report", "query", "failing query"])
def test_a_terminal_of_ascii_gets_ascii(study, command):
    done = _in_a_process(_words(command, study), PYTHONIOENCODING="ascii", LANG="C", LC_ALL="C")
    assert done.returncode == (2 if command == "failing query" else 0), done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error():
    shell = f"{sys.executable} -m isobatch study --list | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=soon(120))
    assert (done.returncode, done.stderr) == (0, b"")
