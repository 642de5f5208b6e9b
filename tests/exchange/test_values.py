import pytest

from isobatch.exchange.values import (
    Scheduled,
    anything,
    flag,
    number,
    optional,
    options,
    schedule,
    whole,
    widths,
)


@pytest.mark.parametrize(
    ("reader", "value", "read"),
    [
        (whole, "1e6", 1_000_000), (whole, "1_000_000", 1_000_000), (whole, 2.0, 2),
        (whole, "9007199254740993", 9007199254740993), (whole, "-1", -1),
        (number, "3e-4", 3e-4), (number, 1, 1), (number, "inf", float("inf")),
        (flag, "True", True), (flag, "false", False), (flag, True, True),
        (optional(whole), "None", None), (optional(whole), None, None), (optional(whole), "3", 3),
        (schedule, "lin_2.5e-4", Scheduled(2.5e-4, True)), (schedule, 0.1, Scheduled(0.1)),
        (widths, "[64, 32]", (64, 32)), (widths, (8,), (8,)),
        (anything, "null", None), (anything, "[1, 2]", [1, 2]), (anything, "a b", "a b"),
    ],
)  # fmt: skip
def test_read(reader, value, read):
    assert reader(value) == read


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        (whole, "1.5"), (whole, True), (whole, "inf"), (whole, None), (number, "x"),
        (number, "nan"), (number, [1]), (flag, 2), (flag, "on off"), (schedule, "lin_"),
        (schedule, lambda left: left), (widths, 64), (widths, "[a]"), (options, "f(x)"),
        (options, "dict(**x)"), (options, "dict(1)"), (options, "[1]"), (options, "(" * 500),
        (options, 3),
    ],
)  # fmt: skip
def test_refused(reader, value):
    with pytest.raises(ValueError, match="must be"):
        reader(value)


def test_options_are_data_and_names_stay_names():
    text = "dict(a=nn.ReLU, b={'c': (1, -2.5)}, d=__import__('os').getcwd(), e=None)"
    assert options(text) == {
        "a": "nn.ReLU", "b": {"c": (1, -2.5)},
        "d": "__import__('os').getcwd()", "e": None,
    }  # fmt: skip
