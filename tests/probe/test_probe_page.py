"""The probe's page, of numbers made up for these tests."""

import re

import numpy as np
import pytest
from pages import Browser, Elements, needs_chromium, plot

from isobatch.probe.page import render

HOSTILE = "<script>alert(1)</script>"
SECTIONS = ["curve", "decomposition", "noise", "agreement", "lags", "bias"]
FIGURES = [
    "curve", "raw", "normalised", "noise", "scatter-1", "scatter-2", "cosines-1", "cosines-2",
    "lags", "bias", "advantages",
]  # fmt: skip
SHAPES = [(4, 32), (64, 16)]
BATCHES = 5
WINS = {4: 0.02, 8: 0.27, 16: 0.58, 32: 0.13}


def made_up(points: int = 1) -> dict:
    """Return a probe's data, plausible and invented."""
    return {
        "format": 1,
        "source": {
            "run": "pendulum", "env": "Pendulum-v1", "algo": "ppo", "policy": "trained",
            "of": "policy", "shape": "16x64", "gamma": 0.99, "gae_lambda": 0.95,
        },
        "points": [made_up_point((place + 1) / points, seed=place) for place in range(points)],
    }  # fmt: skip


def made_up_point(fraction: float, seed: int) -> dict:
    random = np.random.default_rng(seed)
    return {
        "env_steps": int(100_000 * fraction),
        "fraction": fraction,
        "collected": {
            "n_envs": 80, "n_steps": 331, "rows": 26_480, "burn_in": 400, "episode_length": 200.0,
            "seconds": 12.3,
        },
        "parameters": 4481,
        "sketch": {"width": 2048, "error": 0.022},
        "answer": [
            "at 1,024 samples: 64x16. It errs by 0.22 of the squared gradient, 16x64 by 0.35.",
            "per second: 128x8, at 18,379 steps a second.",
            "correlation costs 16x64 half of its samples: 1,024 are worth 480 independent ones.",
        ],
        "decomposition": [
            made_up_decomposition(*shape, normalized)
            for shape in [*SHAPES, (16, 64)]
            for normalized in (False, True)
        ],
        "noise": [
            made_up_noise(n_envs, n_steps, estimator)
            for n_envs, n_steps in SHAPES
            for estimator in ("per-sample", "two-batch", "per-environment")
        ],
        "agreement": [made_up_agreement(random, *shape) for shape in SHAPES],
        "lags": [made_up_lags(*shape) for shape in SHAPES],
        "bias": [made_up_bias(gae_lambda) for gae_lambda in (0.95, 1.0)],
        "curve": made_up_curve(),
    }  # fmt: skip


def around(value: float, by: float = 0.25) -> list:
    return [value, value - by * abs(value), value + by * abs(value)]


def made_up_decomposition(n_envs: int, n_steps: int, normalized: bool = False) -> dict:
    # Of the shape 4x32 steps make up for each other, so that the covariance is below zero.
    icc = -0.015 if n_envs == 4 else 0.02
    samples, effect = n_envs * n_steps, 1 + (n_steps - 1) * icc
    individual = (0.04 if normalized else 3.2) / samples
    return {
        "shape": f"{n_envs}x{n_steps}", "n_envs": n_envs, "n_steps": n_steps, "batches": BATCHES,
        "normalized": normalized, "total": around(effect * individual),
        "individual": around(individual), "covariance": around((effect - 1) * individual),
        "icc": around(icc),
        "design_effect": around(effect), "effective_samples": around(samples / effect),
        "across_batches": None if n_envs == 64 else 1.1 * effect * individual,
    }  # fmt: skip


def made_up_noise(n_envs: int, n_steps: int, estimator: str) -> dict:
    scale = around({"per-sample": 900.0, "two-batch": 1100.0, "per-environment": 2600.0}[estimator])
    if n_envs == 4:
        scale = {"two-batch": [1100.0, 400.0, None], "per-environment": [None, 700.0, None]}.get(
            estimator, scale
        )
    signal = -0.0001 if scale[0] is None else 3.2 / scale[0]
    return {
        "shape": f"{n_envs}x{n_steps}", "estimator": estimator, "noise_scale": scale,
        "signal": around(signal), "trace": around(3.2),
    }  # fmt: skip


def made_up_agreement(random: np.random.Generator, n_envs: int, n_steps: int) -> dict:
    signal = random.normal(size=40)
    noise = random.normal(size=(BATCHES, 40)) * (6 if n_envs == 4 else 0.8)
    means = signal + noise
    samples = means[0] + 8 * random.normal(size=(min(512, n_envs * n_steps), 40))
    samples *= random.lognormal(sigma=1.2, size=(len(samples), 1))
    lengths = np.linalg.norm(means, axis=1)
    norms = np.linalg.norm(samples, axis=1)
    cosines = samples @ means.T / norms[:, None] / lengths
    return {
        "shape": f"{n_envs}x{n_steps}",
        "cosines": (means @ means.T / np.outer(lengths, lengths)).tolist(),
        "norms": lengths.tolist(),
        "scatter": [
            {"norm": norms.tolist(), "cosine": cosines[:, batch].tolist()}
            for batch in range(BATCHES)
        ],
    }


def made_up_lags(n_envs: int, n_steps: int) -> dict:
    lag = [2**power for power in range(10) if 2**power < n_steps]
    return {
        "shape": f"{n_envs}x{n_steps}", "lag": lag,
        "within": [0.4 * 0.85**each - (0.05 if n_envs == 4 else 0) for each in lag],
        "across": [0.003 * (-1) ** each for each in lag],
    }  # fmt: skip


def made_up_bias(gae_lambda: float) -> dict:
    n_steps = [2**power for power in range(9)]
    bias = [0.8 / (1 + each / (8 if gae_lambda < 1 else 20)) for each in n_steps]
    return {
        "gae_lambda": gae_lambda, "n_steps": n_steps,
        "bias": [around(each) if each < 0.7 else [each, None, None] for each in bias],
        "advantage_error": [1.3 * each for each in bias],
    }  # fmt: skip


def made_up_curve() -> dict:
    shapes = []
    for power in range(11):
        n_envs, n_steps = 2 ** (10 - power), 2**power
        bias2 = 0.6 / (1 + n_steps / 4) ** 2
        # Long rollouts have no bias left, and its estimate may fall on either side of zero.
        measured = bias2 if n_steps < 256 else -1e-4
        variance = 0.12 + 0.008 * n_steps**0.8
        shapes.append(
            {
                "n_envs": n_envs, "n_steps": n_steps,
                "bias2": [measured, measured - 0.3 * bias2 - 5e-4, measured + 0.3 * bias2 + 5e-4],
                "variance": around(variance), "error": around(measured + variance),
                "steps_per_second": None if power == 10 else 1000.0 * n_envs**0.6,
                "wins": WINS.get(n_steps, 0.0), "wins_per_second": WINS.get(2 * n_steps, 0.0),
            }
        )  # fmt: skip
    return {"samples": 1024, "best": "64x16", "fastest": "128x8", "own": "16x64", "shapes": shapes}


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
    start = page.words.index("At 1,024 samples: 64x16.")
    assert page.words.index("Per second: 128x8") < page.words.index("lowest error")
    assert "After 100,000 environment steps, 100% of training" in page.words[:start]
    assert "Pendulum-v1, ppo" in page.words[:start]
    assert "the recipe's 1,024 samples" in page.words
    assert "26,480 samples from 80 environments" in page.words
    assert "projected to 2,048 dimensions" in page.words
    assert "squared norm of the reference gradient" in page.words


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_section_is_left_out(section):
    data = made_up()
    data["points"][0][section] = None if section == "curve" else []
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
    data = page.data["figures"]["point-1-curve"]["data"]
    marks = {trace["name"]: trace["x"] for trace in data if trace["mode"] == "markers"}
    assert marks == {
        "best per sample: 64x16": [4],
        "best per second: 128x8": [3],
        "the recipe's shape: 16x64": [6],
    }
    assert re.search(r"64x16 \S+ \[.*?\] .* 12,126 \d+% \d+% best per sample", page.words)
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


def test_panels_share_their_axes(page):
    layouts = [page.data["figures"][f"point-1-scatter-{place}"]["layout"] for place in (1, 2)]
    axes = [layout[f"xaxis{number}"] for layout in layouts for number in ("", 2, 3, 4, 5)]
    assert len({tuple(axis["range"]) for axis in axes}) == 1
    assert layouts[0]["yaxis"]["range"] == layouts[1]["yaxis"]["range"]


def test_values_without_intervals_are_enough():
    data = made_up()
    (point,) = data["points"]
    for entry in point["decomposition"] + point["noise"] + point["curve"]["shapes"]:
        for name, value in entry.items():
            if isinstance(value, list):
                entry[name] = [value[0], None, None]
    point["curve"] |= {"fastest": None, "own": "3x5"}
    point |= {"fraction": None, "env_steps": 0, "sketch": None}
    page = Elements(render(data))
    assert "Before training" in page.words
    assert "projected" not in page.words
    curve = page.data["figures"]["point-1-curve"]["data"]
    assert [trace["name"] for trace in curve if trace["mode"] == "markers"] == [
        "best per sample: 64x16"
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
    point["answer"] = [f"At {HOSTILE}", HOSTILE]
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
        browser.wait(
            f"{plot('point-1-curve')}.querySelector('.main-svg').width.baseVal.value < 390"
        )
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")
