"""What a terminal shows of a run under way."""

import io

import pytest
from rich.console import Console

import isobatch
from isobatch.run.live import Lines, LiveView, chart, picture

ROW = {
    "env_steps": 1024, "n_envs": 8, "n_steps": 128, "rollout_size": 1024, "n_minibatches": 4,
    "minibatch_size": 256, "updates_per_sample": 10.0, "steps_per_second": 15_181.0,
    "episode_return": 20.74, "approx_kl": 0.0066, "clip_fraction": 0.09, "env_seconds": 0.1,
    "acting_seconds": 0.1, "learning_seconds": 0.7, "other_seconds": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([0, 7], "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([5, 5, 5], "▁▁▁"),
        ([0, 0, 4, 4, 8, 8], "▁▁▅▅██"),
    ],
)
def test_a_chart_goes_from_the_lowest_bar_to_the_highest(values, drawn):
    assert chart(values) == drawn


def test_many_values_are_averaged_in_columns():
    assert chart([0, 2, 10, 12], width=2) == "▁█"
    assert len(chart(range(1000))) == 24


def test_the_picture_has_return_batch_and_time():
    lines = picture(ROW, [10.0, 20.74])
    assert lines[0] == "return 20.74  ▁█  10 to 20.74"
    assert lines[2] == ("batch 8 x 128 = 1,024 transitions, 4 minibatches of 256, 10 epochs")
    assert lines[3] == "time  environments 10%  acting 10%  learning 70%  other 10%"
    assert all(len(line) <= 80 for line in lines)


def broken():
    """Return a recipe that one look at tells to be wrong: two iterations in its budget."""
    return isobatch.preset("CartPole-v1").replace(total_timesteps=2048, n_steps=128)


def test_the_view_fits_80_columns_and_names_what_is_the_matter():
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True)
    view = LiveView(console)
    view.start(broken(), "runs/x", 0)
    view.row(ROW)
    view.row(ROW | {"env_steps": 2048, "episode_return": 30.0})
    view.stop()
    out = screen.getvalue()
    assert "few-updates" in out
    assert "2,048 of 2,048 env steps" in out
    assert "return 30" in out
    assert "2,048 of 2,048 env steps done in" in out


def test_a_run_that_was_stopped_does_not_say_that_it_is_done():
    screen = io.StringIO()
    view = LiveView(Console(file=screen, width=80, force_terminal=True))
    view.start(broken(), "runs/x", 0)
    view.row(ROW)
    view.stop()
    out = screen.getvalue()
    assert "stopped after 0 s" in out
    assert "done in" not in out


def test_a_change_of_the_batch_is_printed_above():
    screen = io.StringIO()
    view = LiveView(Console(file=screen, width=80, force_terminal=True))
    view.start(broken(), "runs/x", 0)
    view.row(ROW | {"rows": 1000, "reshaped": "n_envs 8 -> 32", "decision": "noise scale 9"})
    view.row(ROW)
    view.stop()
    assert screen.getvalue().count("24 env steps: reshaped: n_envs 8 -> 32 (noise scale 9)") == 1


def test_lines_say_a_finding_once(capsys):
    lines = Lines()
    lines.start(broken(), "runs/x", 0)
    for k in range(1, 30):
        lines.row(ROW | {"env_steps": 70 * k})
    out = capsys.readouterr().out
    assert out.count("few-updates") == 1
