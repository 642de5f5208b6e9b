"""The page of a run in a real browser."""

import dataclasses
import json

import pytest
from made_up_run import FINDINGS, RECIPE, write_run
from pages import Browser, needs_chromium, plot
from test_run_page import GIF, HOSTILE, STRANGE, rows_of

from isobatch import report
from isobatch.report.course import AXES

pytestmark = needs_chromium
MARKS = "'.scatterlayer .trace path, .barlayer .trace path'"
NAMES = "[...document.querySelectorAll('[data-figure]')].map(f => f.dataset.figure)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("runs") / "first")
    (path / "videos").mkdir()
    (path / "videos" / "policy.gif").write_bytes(GIF)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory, run):
    root = tmp_path_factory.mktemp("browser")
    course = dataclasses.replace(report.read(run), findings=FINDINGS)
    report.write([course], root / "report.html")
    browser = Browser(root)
    try:
        browser.open(root / "report.html")
        yield browser
        assert browser.run("document.documentElement.dataset.problems") is None
        assert browser.complaints == []
    finally:
        browser.close()


def test_every_figure_is_drawn(browser):
    names = browser.run(NAMES)
    assert names == [
        "evaluation", "training", "policy_loss", "value_loss", "entropy", "approx_kl",
        "clip_fraction", "explained_variance", "grad_norm", "learning_rate", "weight_norm",
        "gradient_kurtosis", "policy_variance", "importance_ess", "feature_rank",
        "dormant_fraction", "state_coverage", "time", "timeline", "other",
    ]  # fmt: skip
    for name in names:
        assert browser.run(f"{plot(name)}.querySelectorAll({MARKS}).length") > 0, name
    for name in ("approx_kl", "clip_fraction"):
        assert browser.run(f"{plot(name)}.querySelectorAll('.shapelayer path').length") == 1
    assert browser.run("document.documentElement.dataset.problems") is None
    assert len([url for url in browser.requests if not url.startswith(("data:", "blob:"))]) == 1


def test_the_drawn_numbers_are_the_files(browser, run):
    rows = rows_of(run)
    drawn = browser.run(f"{plot('value_loss')}.data[0]")
    assert drawn["x"] == [row["env_steps"] for row in rows]
    assert drawn["y"] == [row["value_loss"] for row in rows]


def test_the_switch_moves_every_curve_to_another_axis(browser, run):
    rows = rows_of(run)
    path = f"{plot('time')}.querySelector('.js-line').getAttribute('d')"
    for axis in ("seconds", "grad_steps", "env_steps"):
        browser.run(f"document.querySelector('[name=axis][value={axis}]').click()")
        for name in ("training", "entropy", "time"):
            assert browser.run(f"{plot(name)}.data[0].x") == [row[axis] for row in rows]
        title = browser.run(f"{plot('evaluation')}.querySelector('.xtitle').textContent")
        assert title == AXES[axis]
        assert browser.run(f"{plot('timeline')}.data[0].x") == [rows[19][axis], rows[-1][axis]]
        assert browser.run(path)


def test_a_column_is_chosen(browser, run):
    choose = "document.querySelector('[data-chooses]')"
    names = browser.run(f"[...{choose}.options].map(o => o.textContent)")
    assert "steps_per_second" in names
    assert "entropy" not in names
    browser.run(f"{choose}.value = 'column:episodes'; {choose}.dispatchEvent(new Event('change'))")
    drawn = browser.run(f"{plot('other')}.data[0].y")
    assert drawn == [row["episodes"] for row in rows_of(run)]


def test_the_picture_moves(browser):
    assert browser.run("document.querySelector('#video img').naturalWidth") == 1


@pytest.mark.parametrize(("width", "picture"), [(400, "narrow"), (1400, "wide")])
def test_it_fits_a_phone_and_a_screen(browser, width, picture):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    try:
        browser.wait(f"document.documentElement.scrollWidth <= {width}")
        shown = "[...document.querySelectorAll('.batch')].filter(b => b.offsetHeight)"
        assert browser.run(f"{shown}.map(b => b.className)") == [f"batch {picture}-only"]
        within = f"{plot('entropy')}.querySelector('.main-svg').width.baseVal.value < {width}"
        assert browser.wait(within)
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_no_flag_is_broken_on_a_phone(browser):
    browser.resize(400)
    lines = "[...document.querySelectorAll('.whole')].map(f => f.getClientRects().length)"
    found = browser.run(lines)
    assert len(found) > 3
    assert set(found) == {1}


def test_no_table_is_cut_on_a_phone(browser):
    outside = "[...document.querySelectorAll('table')].filter(t => !t.closest('.wide')).length"
    assert browser.run("document.querySelectorAll('table').length") > 0
    assert browser.run(outside) == 0


def test_ticks_are_short_numbers(browser):
    ticks = "[...{}.querySelectorAll('.{}tick text')].map(t => t.textContent)"
    assert "20k" in browser.run(ticks.format(plot("entropy"), "x"))
    assert browser.run(ticks.format(plot("learning_rate"), "y"))[:2] == ["0", "0.0002"]


BATCH = """[...new Set([...document.querySelectorAll('.batch-{}')]
    .map(e => getComputedStyle(e).{}))]"""


def brightness(colour: str) -> float:
    """Return the mean of rgb(...)'s parts, 0 to 1."""
    parts = [float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    return sum(parts) / 765


def test_the_batch_is_readable_in_the_dark(browser):
    browser.prefer("dark")
    try:
        (paper,) = browser.run(BATCH.format("paper", "fill"))
        (box,) = browser.run(BATCH.format("box", "fill"))
        assert max(brightness(paper), brightness(box)) < 0.2
        for kind in ("ink", "faint", "part"):
            (colour,) = browser.run(BATCH.format(kind, "fill"))
            assert brightness(colour) > 0.5, kind
        (arrow,) = browser.run(BATCH.format("arrow", "stroke"))
        assert brightness(arrow) > 0.5
    finally:
        browser.prefer("light")


def test_a_dark_page_has_a_dark_batch(browser):
    paper = "getComputedStyle(document.querySelector('.batch-paper')).fill"
    assert browser.run(paper) == "rgb(255, 255, 255)"
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[feature])
    try:
        assert browser.wait(f"{paper} !== 'rgb(255, 255, 255)' && {paper}") == "rgb(21, 24, 28)"
        ink = f"getComputedStyle({plot('entropy')}.querySelector('.xtitle')).fill"
        assert browser.wait(f"{ink} === 'rgb(228, 231, 235)'")
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])


def test_several_runs_and_strange_names_are_drawn_and_run_nothing(tmp_path):
    paths = [
        write_run(tmp_path / "a"),
        write_run(tmp_path / "b", recipe=RECIPE.replace(seed=2), tilt=0.5),
        write_run(tmp_path / "c", recipe=RECIPE.replace(env=HOSTILE), rows=4),
    ]
    rows = [row | STRANGE for row in rows_of(paths[2])]
    (paths[2] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hostile = [
        dataclasses.replace(
            each, rule=HOSTILE, sentence=f"%{{y}} {HOSTILE}", changes={HOSTILE: HOSTILE}
        )
        for each in FINDINGS
    ]
    courses = [
        dataclasses.replace(report.read(path, f"{path.name} {HOSTILE}"), findings=hostile)
        for path in paths
    ]
    report.write(courses, tmp_path / "report.html")
    browser = Browser(tmp_path)
    try:
        browser.open(tmp_path / "report.html")
        for name in browser.run(NAMES):
            assert browser.run(f"{plot(name)}.querySelectorAll({MARKS}).length") > 0, name
        legend = f"[...{plot('entropy')}.querySelectorAll('.legendtext')].map(t => t.textContent)"
        shown = [text.replace("\n", "") for text in browser.run(legend)]
        assert len(shown) == 3
        assert all("alert(1)" in text for text in shown)
        choose = "document.querySelector('[data-chooses]')"
        for name in browser.run(f"[...{choose}.options].map(o => o.value)"):
            browser.run(
                f"{choose}.value = {json.dumps(name)}; {choose}.dispatchEvent(new Event('change'))"
            )
            drawn = browser.run(f"{plot('other')}.data[0].y")
            assert drawn, name
        assert browser.run("document.scripts.length") == 3
        assert browser.run("document.documentElement.dataset.problems") is None
        assert browser.complaints == []
    finally:
        browser.close()


def test_a_run_without_rows_is_a_page_too(tmp_path):
    path = write_run(tmp_path / "empty", rows=0)
    (path / "evaluations.jsonl").unlink()
    report.write([report.read(path)], tmp_path / "report.html")
    browser = Browser(tmp_path)
    try:
        browser.open(tmp_path / "report.html")
        assert browser.run("document.documentElement.dataset.drawn") == "0"
        assert browser.run("document.documentElement.dataset.problems") is None
        assert browser.complaints == []
    finally:
        browser.close()
