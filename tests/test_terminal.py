"""What commands show in a terminal: wrapped at words, and something at once."""

import io
import json
import sys

import pytest

import isobatch
from benchmarks import captures
from isobatch import cli
from isobatch.cli import loading
from isobatch.run import ending
from isobatch.run.training import Run
from isobatch.text import say, wrapped

ERASED = "\r\x1b[K"


def in_a_terminal(*words, folder=None):
    """Run a command with a terminal of 80 columns for its output; return all it wrote there."""
    written, code = captures.in_a_terminal([sys.executable, "-m", "isobatch", *words], folder)
    assert code == 0, written
    return written.replace("\r\n", "\n")


def test_a_capture_shows_what_stands_on_the_screen():
    written = "loading ...\r\x1b[Kbar\x1b[0m 1%\r\n2 s\r\x1b[1A\x1b[2Kbar 50%\r\n3\r\n"
    assert captures.screen(written) == ["bar 50%", "3 s"]


def test_a_long_line_is_broken_between_words_and_indented():
    text = "one two three four five six seven eight nine ten"
    assert wrapped(text, hanging="  ", width=40) == [
        "one two three four five six seven eight",
        "  nine ten",
    ]
    assert wrapped(f"    {text}", width=40)[1].startswith("    ")
    assert wrapped(f"! {text}", width=40)[1].startswith("  ")
    assert wrapped(text, indent="      ", width=40)[1].startswith("      ")
    assert wrapped("short\n\nlines", width=40) == ["short", "", "lines"]


def test_a_word_is_never_broken():
    path = "runs/" + "long-name-" * 9
    assert wrapped(f"saved to {path}", hanging="  ", width=40) == ["saved to", f"  {path}"]


def test_what_is_no_terminal_gets_a_message_in_one_line(capsys):
    say("word " * 60)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_terminal_gets_lines_of_its_width(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    say("word " * 60)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 4
    assert max(map(len, lines)) <= 60


def test_training_says_first_what_is_loaded_and_last_where_it_is(tmp_path):
    words = ["--n-envs", "2", "--n-steps", "8", "--total-timesteps", "64", "--out", "run"]
    screen = in_a_terminal("train", "CartPole-v1", *words, folder=tmp_path)
    assert screen.startswith("loading ")
    shown, _, rest = screen.partition(f"loading PyTorch ...{ERASED}")
    assert rest, "PyTorch is named while it is loaded, and then erased"
    assert "env" not in shown, "nothing is said before"
    assert screen.count("loading ") == screen.count(f"...{ERASED}")
    assert "done in" in screen
    assert screen.rstrip().endswith("saved to run")


def test_help_loads_nothing(tmp_path):
    screen = in_a_terminal("--help", folder=tmp_path)
    assert "loading" not in screen
    assert max(map(len, screen.splitlines())) <= captures.COLUMNS


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_a_commands_help_fits(name, capsys):
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: isobatch {name}")
    assert max(map(len, lines)) <= captures.COLUMNS


def test_nothing_is_shown_where_errors_go_to_a_file(capsys):
    before = list(sys.meta_path)
    with loading.shown():
        assert sys.meta_path == before


def test_a_package_is_named_only_while_it_is_imported(tmp_path, monkeypatch, capsys):
    (tmp_path / "slow_package.py").write_text("import sys\nsys.stderr.write('[importing]')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(loading.NAMES, "slow_package", "Slow")
    before = list(sys.meta_path)
    with loading.shown():
        import slow_package  # type: ignore[import-not-found]
    assert capsys.readouterr().err == f"loading Slow ...[importing]{ERASED}"
    assert sys.meta_path == before
    del sys.modules["slow_package"]
    with loading.shown():
        monkeypatch.setattr(sys, "stderr", beside := io.StringIO())  # As a progress bar does.
        import slow_package  # noqa: F401  # type: ignore[import-not-found]
    assert beside.getvalue() == "[importing]"
    del sys.modules["slow_package"]


PROBED = {"gradient_signal": 0.1, "noise_scale": 2345.0, "minibatch_size": 256, "env_steps": 9_000}
UNDECIDED = PROBED | {"decision": "undecided: the squared gradient, 0.1 +- 0.2, ...; it stays"}
MOVED = PROBED | {"reshaped": "n_minibatches 4 -> 2", "decision": "noise scale 2,345 ..."}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([PROBED] * 2, ["2 probes, nothing changed", "needs 5 probes", "2,345 transitions"]),
        ([PROBED] * 9 + [UNDECIDED], ["10 probes, nothing changed", "1 decision undecided"]),
        ([PROBED] * 9, ["9 probes, nothing changed", "no other size was better"]),
        ([PROBED] * 5 + [MOVED], ["6 probes, 1 change", "at 9,000 env steps: n_minibatches 4 ->"]),
        ([PROBED | {"noise_scale": None}], ["1 probe, nothing changed", "not measurable"]),
        ([], ["0 probes, nothing changed", "needs 5 probes"]),
    ],
)
def test_an_adaptive_batch_says_what_it_measured_and_changed(rows, said, tmp_path):
    recipe = isobatch.preset("CartPole-v1", batch_schedule="adaptive")
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    lines = [json.dumps({"iterations": k} | row) for k, row in enumerate(rows, start=1)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    told = "\n".join(ending.batch_changes(Run(tmp_path)))
    assert told.startswith("adaptive batch: ")
    for fragment in said:
        assert fragment in told


def test_a_fixed_batch_has_nothing_to_say(tmp_path):
    (tmp_path / "recipe.toml").write_text(isobatch.preset("CartPole-v1").to_toml())
    assert ending.batch_changes(Run(tmp_path)) == []
