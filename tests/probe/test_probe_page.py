"""The probe's page, of numbers made up for these tests."""

import re

import numpy as np
import pytest
from made_up_probe import made_up, made_up_decomposition
from pages import Browser, Elements, needs_chromium, plot

from isobatch.errors import UserError
from isobatch.probe.page import render

HOSTILE = "<script>alert(1)</script>"
SECTIONS = ["curve", "decomposition", "noise", "agreement", "lags", "bias"]
FIGURES = [
    "curve-monte-carlo", "curve-gae", "raw", "normalised", "noise", "scatter-1", "scatter-2",
    "cosines-1", "cosines-2", "lags", "bias", "advantages",
]  # fmt: skip


@pytest.fixture(scope="module")
def page():
    return Elements(render(made_up()))


def ids(page: Elements) -> list:
    return [attributes["id"] for tag, attributes in page.tags if tag == "section"]


def test_every_section_is_there(page):
    assert ids(page) == ["point-1", *(f"point-1-{name}" for name in SECTIONS)]
    assert set(page.data["figures"]) == {f"point-1-{name}" for name in FIGURES}
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == [f"#point-1-{name}" for name in SECTIONS]


def test_the_answer_comes_first(page):
    start = page.words.index("4x32 or 64x16: 64x16 has the smaller error in 97%")
    assert page.words.index("By time: 128x8") < page.words.index("lowest error")
    assert start < page.words.index("No episode ended within 400 steps")
    assert start < page.words.index("effective sample size 480")
    assert "After 100,000 environment steps, 100% of training" in page.words[:start]
    assert "Pendulum-v1, ppo" in page.words[:start]
    assert "the recipe's rollout, 1,024 transitions" in page.words
    assert "26,480 transitions from 80 environments" in page.words
    assert "projected to 2,048 dimensions" in page.words
    assert "squared norm of the reference gradient" in page.words


def test_an_answer_writes_no_upper_bound_as_the_page_does():
    data = made_up()
    data["points"][0] |= {"answer": ["Noise scale 181,000 [2,080, inf] transitions."]}
    data["points"][0]["answer"].append("|G|^2 is not positive.")
    page = render(data)
    assert "Noise scale 181,000 [2,080, ∞] transitions." in page
    assert '<span class="whole">|G|²</span> is not positive.' in page


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_section_is_left_out(section):
    data = made_up()
    data["points"][0]["curves" if section == "curve" else section] = []
    page = Elements(render(data))
    rest = [name for name in SECTIONS if name != section]
    assert ids(page) == ["point-1", *(f"point-1-{name}" for name in rest)]
    figures = {
        attributes["data-figure"] for _, attributes in page.tags if "data-figure" in attributes
    }
    assert figures == set(page.data["figures"]) < {f"point-1-{name}" for name in FIGURES}
    assert f"#point-1-{section}" not in [attributes.get("href") for _, attributes in page.tags]


def test_covariance_below_zero_is_shown(page):
    entry = made_up_decomposition(4, 32)
    value, low, high = entry["covariance"]
    assert value < 0
    assert f"{value:#.4g} [{low:#.4g}, {high:#.4g}]" in page.words
    figure = page.data["figures"]["point-1-raw"]
    individual, covariance, total = (np.array(trace["y"]) for trace in figure["data"])
    assert figure["layout"]["barmode"] == "relative"
    assert covariance[0] == pytest.approx(128 * value, rel=1e-3)
    assert individual + covariance == pytest.approx(total, rel=1e-3)


def test_the_curve_marks_its_winners_and_the_recipe(page):
    data = page.data["figures"]["point-1-curve-monte-carlo"]["data"]
    marks = {trace["name"]: trace["x"] for trace in data if trace["mode"] == "markers"}
    assert marks == {
        "best per transition: 64x16": [4],
        "best per second: 128x8": [3],
        "the recipe's shape: 16x64": [6],
    }
    assert re.search(r"64x16 \S+ \[.*?\] .* 12,126 \d+% \d+% best per transition", page.words)
    assert re.search(r"1x1024 -0\.0001\d* \[.*?\] \S+ \[.*?\] \S+ \[.*?\] - \d+%", page.words)


def test_a_noise_scale_without_bound_is_said(page):
    assert "4x32 two-batch 1,100 [400.0, ∞]" in page.words
    assert "4x32 per-environment ∞ [700.0, ∞]" in page.words
    figure = page.data["figures"]["point-1-noise"]
    edge = 10 ** figure["layout"]["xaxis"]["range"][1]
    bounded, half, none = figure["data"][:3]
    assert bounded["x"][0] + bounded["error_x"]["array"][0] < edge
    assert half["x"][0] + half["error_x"]["array"][0] > edge
    assert (none["x"], none["marker"]["symbol"]) == ([700], "triangle-right")


def test_a_variance_without_bound_is_said_and_leaves_the_figure():
    data = made_up()
    (point,) = data["points"]
    value = point["decomposition"][0]["total"][0]
    point["decomposition"][0]["total"] = [value, 0.0, None]
    point["curves"][0]["shapes"][0]["error"] = [0.8, 0.1, None]
    page = Elements(render(data))
    assert f"{value:#.4g} [0.000, ∞]" in page.words
    figure = page.data["figures"]["point-1-raw"]
    total = figure["data"][-1]
    assert total["y"][0] + total["error_y"]["array"][0] > figure["layout"]["yaxis"]["range"][1]
    assert "0.8000 [0.1000, ∞]" in page.words
    curve = page.data["figures"]["point-1-curve-monte-carlo"]["data"]
    tops = [trace["y"][0] for trace in curve if trace.get("fill")]
    assert all(top is not None for top in tops)
    assert max(tops) > 0.8, "the band goes up to the highest there is"


def test_both_references_are_there_and_what_the_value_function_costs(page):
    assert "Advice rests on Monte-Carlo returns where their gradient is" in page.words
    assert "83% of the transitions see their episode terminate" in page.words
    assert "The value function is left 3.1% of the weight" in page.words
    for name in ("against Monte-Carlo returns total bias²", "against GAE bootstrapping bias²"):
        assert name in page.words
    assert "value-function bias 0.95 no end 0.3000 [0.2000, 0.4000]" in page.words
    names = {trace["name"] for trace in page.data["figures"]["point-1-bias"]["data"]}
    assert {"total, λ = 0.95", "bootstrapping, λ = 0.95"} <= names
    assert page.words.count("no end 0.2500 [0.2000, 0.3000]") == 1
    assert "Here it is not" not in page.words
    assert "Here only that of GAE is" not in page.words


def test_a_reference_that_is_lost_in_noise_advises_nothing():
    data = made_up()
    data["points"][0] |= {"state": "no gradient"}
    data["points"][0]["curves"][0] |= {"decided": False, "best": None}
    page = Elements(render(data))
    assert "Here it is not, so no shape is advised." in page.words
    assert "point-1-curve-monte-carlo" not in page.data["figures"]
    assert "point-1-curve-gae" in page.data["figures"]
    (card,) = [attributes["class"] for tag, attributes in page.tags if tag == "article"]
    assert card == "card undecided"


def test_a_policy_that_has_collapsed_gets_no_noise_scale_and_no_curve():
    data = made_up()
    (point,) = data["points"]
    point |= {"state": "collapsed", "answer": ["The policy has collapsed."]}
    for curve in point["curves"]:
        curve |= {"decided": False, "best": None}
    data["passed_over"] = ["The policy at 500 env steps (50%) has collapsed: probed an earlier one"]
    page = Elements(render(data))
    assert not {"point-1-noise", "point-1-curve-gae"} & set(page.data["figures"])
    assert "Far to the right of it" not in page.words
    assert "(50%) has collapsed: probed an earlier one." in page.words


def test_no_value_is_drawn_outside_its_band():
    data = made_up()
    shape = data["points"][0]["curves"][0]["shapes"][3]
    shape["variance"] = [1e-9, 1e-10, 1e-8]
    traces = Elements(render(data)).data["figures"]["point-1-curve-monte-carlo"]["data"]
    bands = [trace["y"] for trace in traces if trace.get("meta") == "band"]
    lines = [trace["y"] for trace in traces if trace.get("mode") == "lines+markers"]
    lows, highs = bands[::2], bands[1::2]
    assert len(lows) == len(highs) == len(lines) == 3
    assert None in lines[1], "far below the axis"
    for band in zip(lows, lines, highs, strict=True):
        for low, value, high in zip(*band, strict=True):
            assert value is None or low <= value <= high


def test_parts_of_the_noise_are_named_and_what_cannot_be_estimated_is_not_a_number(page):
    assert "Credit-assignment noise of 4x32" in page.words
    assert "0.01230, part of the individual variance" in page.words
    assert "it cannot be estimated from these data. 2% of the transitions" in page.words
    assert "4x32 32 0.6100 [0.2000, 0.9000] 0.5000" in page.words


@pytest.mark.parametrize("data", [{}, [], None, {"format": "\x1b[2J"}, {"format": 10**5000}])
def test_what_is_no_record_is_refused_in_a_line(data):
    with pytest.raises(UserError, match=r"recorded in format .*: probe again") as caught:
        render(data)
    assert str(caught.value).isprintable()


def test_a_record_of_another_format_is_refused_in_a_line():
    data = made_up() | {"format": 1}
    with pytest.raises(UserError, match="recorded in format 1, of which this version reads 3") as e:
        render(data)
    assert "\n" not in str(e.value)


def test_panels_share_their_axes(page):
    layouts = [page.data["figures"][f"point-1-scatter-{place}"]["layout"] for place in (1, 2)]
    axes = [layout[f"xaxis{number}"] for layout in layouts for number in ("", 2, 3, 4, 5)]
    assert len({tuple(axis["range"]) for axis in axes}) == 1
    assert layouts[0]["yaxis"]["range"] == layouts[1]["yaxis"]["range"]


def test_values_without_intervals_are_enough():
    data = made_up()
    (point,) = data["points"]
    (curve, _) = point["curves"]
    for entry in point["decomposition"] + point["noise"] + curve["shapes"]:
        for name, value in entry.items():
            if isinstance(value, list):
                entry[name] = [value[0], None, None]
    curve |= {"fastest": None, "own": "3x5"}
    point |= {"fraction": None, "env_steps": 0, "sketch": None}
    page = Elements(render(data))
    assert "Before training" in page.words
    assert "projected" not in page.words
    curve = page.data["figures"]["point-1-curve-monte-carlo"]["data"]
    assert [trace["name"] for trace in curve if trace["mode"] == "markers"] == [
        "best per transition: 64x16"
    ]


def test_rollouts_of_one_step_have_no_lags():
    data = made_up()
    (point,) = data["points"]
    point["lags"][0] |= {"lag": [], "within": [], "across": []}
    page = Elements(render(data))
    assert len(page.data["figures"]["point-1-lags"]["data"]) == 2
    del point["lags"][1]
    assert "point-1-lags" not in ids(Elements(render(data)))


def test_names_from_files_are_text():
    data = made_up()
    data["source"] |= {"env": HOSTILE, "run": HOSTILE, "algo": "<b>ppo</b>"}
    (point,) = data["points"]
    point |= {name: [f"At {HOSTILE}", HOSTILE] for name in ("answer", "warnings", "details")}
    data["passed_over"] = [HOSTILE]
    for name in ("decomposition", "noise", "agreement", "lags"):
        point[name][0]["shape"] = HOSTILE
    text = render(data)
    page = Elements(text)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3
    assert "b" not in tags
    assert f"{HOSTILE}, <b>ppo</b>" in page.words
    assert HOSTILE not in text
    assert "<script" not in str(page.data)


def test_the_page_loads_nothing(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "base", "object", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in page.scripts[0]
    (policy,) = [attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes]
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    root = tmp_path_factory.mktemp("browser")
    file = root / "probe.html"
    file.write_text(render(made_up(points=2)), encoding="utf-8")
    browser = Browser(root)
    try:
        browser.open(file)
        yield browser
        assert browser.run("document.documentElement.dataset.problems") is None
    finally:
        browser.close()


@needs_chromium
def test_every_figure_is_drawn(browser):
    names = browser.run(
        "[...document.querySelectorAll('[data-figure]')].map(f => f.dataset.figure)"
    )
    assert sorted(names) == sorted(f"point-{point}-{name}" for point in (1, 2) for name in FIGURES)
    marks = "'.scatterlayer .trace path, .barlayer .trace path, .heatmaplayer image'"
    for name in names:
        assert browser.run(f"{plot(name)}.querySelectorAll({marks}).length") > 0, name
    assert browser.run("document.documentElement.dataset.problems") is None
    assert len([url for url in browser.requests if not url.startswith(("data:", "blob:"))]) == 1


@needs_chromium
def test_a_bar_below_zero_hangs_from_it(browser):
    drawing = plot("point-1-raw")
    zero = browser.run(f"{drawing}.querySelector('.zl').getBoundingClientRect().top")
    tops = browser.run(
        f"[...{drawing}.querySelectorAll('.barlayer .trace:nth-child(2) path')]"
        ".map(p => p.getBoundingClientRect().top)"
    )
    assert tops[0] == pytest.approx(zero, abs=2)
    assert tops[1] < zero


@needs_chromium
def test_a_narrow_window_needs_no_sideways_scrolling(browser):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    try:
        browser.wait("document.documentElement.scrollWidth === 390")
        drawing = plot("point-1-curve-monte-carlo")
        browser.wait(f"{drawing}.querySelector('.main-svg').width.baseVal.value < 390")
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")
