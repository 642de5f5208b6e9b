"""Every numeric option of every command, with numbers that are none: one line, nothing is run."""

import argparse
import contextlib
import math

import pytest

from isobatch import cli
from isobatch.cli import evaluate, flags, probe, report, rescale, study, train
from isobatch.errors import UserError
from isobatch.presets import preset
from isobatch.recipe import Recipe

NONSENSE = [
    "nan", "-nan", "inf", "-inf", "1e400", "-1e400", "", "x", "0x10", "1.5.5", "\x1b[2J", "1e", "_",
    "12a", "9" * 5000,
]  # fmt: skip
"""No number of any command is one of these."""
HUGE = ["9" * 25, "-" + "9" * 25, "1e30"]
"""No whole number is, though a floating-point one may be."""
COMMANDS = {
    "train": (train.train, ["CartPole-v1"]),
    "resume": (train.resume, ["run"]),
    "eval": (evaluate.evaluate, ["run"]),
    "rescale": (rescale.rescale, ["CartPole-v1"]),
    "probe": (probe.probe, ["run"]),
    "study": (study.study, ["phasic"]),
    "report": (report.report, ["study"]),
}
FLOATS = (flags.positive_number, flags._number, flags._number_or_none)
READERS = (flags.whole_number, *FLOATS)


class Reached(BaseException):
    """The parser that a command made, before it parsed anything."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(command: str, monkeypatch) -> argparse.ArgumentParser:
    def stop(self, *arguments, **settings):
        raise Reached(self)

    function, words = COMMANDS[command]
    with monkeypatch.context() as patched:
        patched.setattr(flags.Parser, "parse_args", stop)
        patched.setattr(flags.Parser, "parse_known_args", stop)
        with pytest.raises(Reached) as caught:
            function(words)
    return caught.value.parser


def is_number(action: argparse.Action) -> bool:
    """Say whether an option takes a number: what reads it is one of ours, or made by one."""
    return action.type in READERS or getattr(action.type, "__qualname__", "").startswith(
        "whole_between"
    )


def test_every_numeric_option_is_read_by_our_own_readers(monkeypatch):
    """So that the walk below misses none: int and float take nan, inf and numbers of any size."""
    counts = {}
    for command in COMMANDS:
        actions = parser_of(command, monkeypatch)._actions
        assert not [each.option_strings for each in actions if each.type in (int, float)]
        counts[command] = sum(is_number(each) for each in actions)
    assert counts["train"] > 40
    assert counts == {
        "train": counts["train"], "resume": 3, "eval": 2, "rescale": 6, "probe": 2, "study": 3,
        "report": 0,
    }  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_nonsense_is_refused_in_a_line(command, monkeypatch):
    parser, base = parser_of(command, monkeypatch), preset("CartPole-v1")
    words = [] if command == "train" else COMMANDS[command][1]

    def read(action: argparse.Action, value: str) -> None:
        parsed, _ = parser.parse_known_args([*words, f"{action.option_strings[0]}={value}"])
        if command in ("train", "resume"):
            # The recipe's own bounds refuse what is a number but not a field's.
            base.replace(**{action.dest: getattr(parsed, action.dest)})

    for action in filter(is_number, parser._actions):
        for value in NONSENSE + HUGE * (action.type not in FLOATS):
            with pytest.raises(UserError) as caught:
                read(action, value)
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 400, f"{action.option_strings} {value[:20]}"


@pytest.mark.parametrize("command", ["eval", "rescale", "probe", "study"])
@pytest.mark.parametrize("value", ["-1", "-0.5", "9e18", "0.5"])
def test_numbers_out_of_range_are_refused_in_a_line(command, value, monkeypatch):
    parser = parser_of(command, monkeypatch)
    for action in filter(is_number, parser._actions):
        fits = (
            (action.dest == "noise_scale" and float(value) > 0)
            or (value == "9e18" and command == "rescale")
            or (value == "9e18" and command == "eval" and action.dest == "seed")
        )
        if not fits:
            with pytest.raises(UserError, match=action.option_strings[0]):
                parser.parse_args([*COMMANDS[command][1], f"{action.option_strings[0]}={value}"])


def test_good_numbers_are_read_as_before():
    assert flags.whole_number("1e6") == flags.whole_number("1_000,000") == 1_000_000
    assert flags.whole_number("-3") == -3
    assert flags.whole_between(0, 5)("5") == 5
    assert flags.positive_number("1e-3") == 0.001
    assert flags._number_or_none("none") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rescale CartPole-v1 --n-envs 16 --noise-scale nan", "--noise-scale: must be a positive"),
        ("rescale CartPole-v1 --n-envs 16 --noise-scale=-3", "--noise-scale: must be a positive"),
        ("rescale CartPole-v1 --n-envs 0", "--n-envs: must be at least 1"),
        ("eval nowhere --seed=-1", "--seed: must be at least 0"),
        ("eval nowhere --episodes 1e9", "--episodes: must be at most 1,000,000"),
        ("probe CartPole-v1 --policy random --lambdas nan", r"--lambdas must lie in \[0, 1\]"),
        ("probe CartPole-v1 --policy random --seed=-1", "--seed: must be at least 0"),
        ("probe CartPole-v1 --policy random --batches 1e9", "--batches: must be at most 1,000"),
        (
            "probe CartPole-v1 --policy random --shapes 99999x99999",
            "16,777,216 transitions",
        ),
        ("study phasic --dry-run --seeds 1e12", "--seeds: must be at most 10,000"),
        ("study phasic --dry-run --seeds 0", "--seeds: must be at least 1"),
        ("study phasic --dry-run --jobs=-1", "--jobs: must be at least 1"),
        ("study phasic --dry-run --jobs 1e9", "--jobs: must be at most 10,000"),
        ("train CartPole-v1 --gamma nan", "gamma must be a finite number, got nan"),
        ("train CartPole-v1 --n-envs 1e30", "expected a whole number, got '1e30'"),
        ("train CartPole-v1 --seed=-1", "seed must not be negative"),
        ("train CartPole-v1 --seeds 4,5,6", "--seeds: expected a whole number, got '4,5,6'"),
    ],
)
def test_the_commands_say_it_and_end_with_2(words, message, capsys):
    assert cli.main(words.split()) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    with pytest.raises(UserError, match=message):
        raise UserError(told)


@pytest.mark.parametrize("size", [1, 2**20, 2**62, 2**63 - 1])
def test_huge_batches_are_rescaled_to_or_refused(size):
    recipe = Recipe(env="x")
    for name in ("n_envs", "n_steps", "n_minibatches", "n_epochs"):
        for options in ({}, {"betas": True, "grad_norm": True}):
            rates = [3e-4]
            with contextlib.suppress(UserError):
                moved = recipe.rescale(**{name: size}, **options).recipe
                rates.append(moved.optimizer.learning_rate)
            assert all(0 < rate < math.inf for rate in rates)
