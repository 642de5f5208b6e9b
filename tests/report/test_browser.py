"""The page in a real browser."""

import dataclasses
import json
import time
import xml.etree.ElementTree as xml

import pytest
from pages import PATIENCE, Browser, needs_chromium, plot
from test_page import HOSTILE, SHAPES, STUDY, write_study

from isobatch.study import report
from isobatch.study.claims import Claim

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    root = tmp_path_factory.mktemp("browser")
    arms = {HOSTILE if arm == "8x64" else arm: fields for arm, fields in SHAPES.items()}
    study = dataclasses.replace(STUDY, arms=arms, claims=())
    write_study(root / "study", study)
    page = report.write(root / "study")
    browser = Browser(root)
    try:
        browser.open(page)
        yield browser
        assert browser.run("document.documentElement.dataset.problems") is None
    finally:
        browser.close()


def test_every_figure_is_drawn(browser):
    names = browser.run(
        "[...document.querySelectorAll('[data-figure]')].map(f => f.dataset.figure)"
    )
    assert names == [
        "IQM", "Mean", "Optimality-gap", "profiles", "curves-Breakout-v5", "curves-Pong-v5",
        "improvement", "metric-Breakout-v5", "metric-Pong-v5", "shapes",
    ]  # fmt: skip
    marks = "'.scatterlayer .trace path, .heatmaplayer image'"
    for name in names:
        assert browser.run(f"{plot(name)}.querySelectorAll({marks}).length") > 0, name
    assert browser.run("document.documentElement.dataset.problems") is None


def test_nothing_is_fetched(browser):
    assert [url for url in browser.requests if url.startswith("file:")]
    assert not [
        url for url in browser.requests if url.partition(":")[0] not in ("file", "data", "blob")
    ]
    assert len({url for url in browser.requests if url.startswith("file:")}) == 1


def test_names_are_shown_as_they_are(browser):
    legend = browser.run(
        f"[...{plot('profiles')}.querySelectorAll('.legendtext')].map(t => t.textContent)"
    )
    assert HOSTILE in [text.replace("\n", "") for text in legend]
    assert browser.run("document.scripts.length") == 3


def test_intervals_and_heat_map_numbers_are_visible(browser):
    assert browser.run(f"{plot('IQM')}.querySelectorAll('.errorbar').length") == 4
    texts = browser.run(
        f"[...{plot('shapes')}.querySelectorAll('.heatmap-label')].map(t => t.textContent)"
    )
    assert len(texts) == 4
    assert all(0 < float(text) < 1 for text in texts)


def test_the_metric_chosen_is_drawn(browser):
    show = f"[{plot('metric-Pong-v5')}.layout.yaxis.title.text, {plot('metric-Pong-v5')}.data[2].y]"
    path = f"{plot('metric-Pong-v5')}.querySelector('.js-line').getAttribute('d')"
    before, drawn = browser.run(show), browser.run(path)
    assert before[0] == "entropy"
    browser.run(
        "{const s = document.getElementById('metric'); s.value = 'metric_1';"
        "s.dispatchEvent(new Event('change'));}"
    )
    after = browser.run(show)
    assert after[0] == "metric_1"
    values = browser.run("JSON.parse(document.getElementById('page').textContent).metrics.values")
    assert after[1] == values["metric_1"][1][2]
    assert browser.wait(f"{path} !== {json.dumps(drawn)}")


@pytest.mark.parametrize(("kind", "count"), [("run", 20), ("band", 8)])
def test_switches_show_and_hide(browser, kind, count):
    box = f"document.querySelector('#curves [data-kind={kind}]')"
    shown = f"{plot('curves-Pong-v5')}.querySelectorAll('.scatterlayer .trace').length"
    before, checked = browser.run(shown), browser.run(f"{box}.checked")
    assert checked == (kind == "band")
    browser.run(f"{box}.click()")
    assert browser.run(shown) == before + (-count if checked else count)
    browser.run(f"{box}.click()")
    assert browser.run(shown) == before


@pytest.mark.parametrize("name", ["IQM", "curves-Pong-v5", "shapes"])
def test_figures_download_as_svg(browser, name):
    content = download(browser, name, "svg")
    root = xml.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {
        "IQM": "16x128",
        "curves-Pong-v5": "return of evaluation episodes",
        "shapes": "steps, T",
    }[name] in texts


def test_figures_download_as_png(browser):
    content = download(browser, "profiles", "png")
    assert content.startswith(b"\x89PNG")
    width = int.from_bytes(content[16:20], "big")
    assert width == 2 * browser.run(f"{plot('profiles')}.clientWidth")


def download(browser, name: str, kind: str) -> bytes:
    """Press a figure's button and return the file that comes of it."""
    browser.run(f"document.querySelector('[data-figure=\"{name}\"] [data-format={kind}]').click()")
    file, over = browser.downloads / f"shapes-{name}.{kind}", time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < over, f"{file.name} was not downloaded"
        time.sleep(0.02)
    return file.read_bytes()


def test_a_header_sorts_by_number(browser):
    header = "[...document.querySelectorAll('.sortable th')].find(h => h.textContent === 'score')"
    column = (
        "[...document.querySelectorAll('.sortable tbody tr')].map(r => +r.cells[3].dataset.value)"
    )
    browser.run(f"{header}.click()")
    ascending = browser.run(column)
    assert ascending == sorted(ascending)
    browser.run(f"{header}.click()")
    assert browser.run(column) == ascending[::-1]


def test_a_run_leads_to_its_recipe(browser):
    assert not browser.run("document.getElementById('recipe-2').open")
    browser.run("document.querySelector('a[href=\"#recipe-2\"]').click()")
    assert browser.wait("document.getElementById('recipe-2').open")


def test_a_narrow_window_needs_no_sideways_scrolling(browser):
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=800,
        deviceScaleFactor=1,
        mobile=True,
    )
    try:
        browser.wait("document.documentElement.scrollWidth === 360")
        browser.wait(f"{plot('profiles')}.querySelector('.main-svg').width.baseVal.value < 360")
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_figures_follow_a_dark_page_and_download_light(browser):
    ink = f"getComputedStyle({plot('profiles')}.querySelector('.xtitle')).fill"
    light = browser.run(ink)
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[feature])
    try:
        assert browser.wait(f"{ink} !== '{light}' && {ink}") == "rgb(228, 231, 235)"
        content = download(browser, "Mean", "svg").decode()
        assert "rgb(255, 255, 255)" in content
        assert "rgb(21, 24, 28)" not in content
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])


MARKUP = (
    HOSTILE,
    "</script><script>window.ran = 1</script>",
    "<img src=x onerror=window.ran=1>",
    '" autofocus onfocus=window.ran=1 x="',
    "' onmouseover='window.ran=1",
    "javascript:window.ran=1",
    '<a href="javascript:window.ran=1">link</a>',
    "<!-- ${window.ran = 1} {{ 7 * 7 }} --> %{x}",
)


@pytest.fixture
def hostile(tmp_path):
    """A page whose every name would be a script, in a browser of its own."""
    arms = {text: {"n_envs": 8 * (place + 1)} for place, text in enumerate(MARKUP)}
    claim = Claim(" ".join(MARKUP), MARKUP[0], MARKUP[1], MARKUP[5])
    everywhere = {"title": " ".join(MARKUP), "note": " ".join(MARKUP), "arms": arms}
    study = dataclasses.replace(STUDY, **everywhere, claims=(claim,), seeds=(1, 2))
    write_study(tmp_path / "study", study)
    browser = Browser(tmp_path)
    try:
        browser.open(report.write(tmp_path / "study"))
        yield browser
    finally:
        browser.close()


def test_no_name_is_a_script(hostile):
    assert all(text in hostile.run("document.body.innerText") for text in MARKUP)
    for event in ("mouseover", "focus", "click"):
        hostile.run(
            "document.querySelectorAll('main *, header *').forEach("
            f"e => e.closest('.drawing, button, a') || e.dispatchEvent(new Event('{event}')))"
        )
    assert hostile.run("document.querySelectorAll('a[href^=\"javascript\"]').length") == 0
    assert hostile.run("document.scripts.length") == 3
    assert hostile.run("typeof window.ran") == "undefined"
    assert hostile.run("document.documentElement.dataset.problems") is None
    assert hostile.complaints == []


def test_markup_that_got_in_would_run_nothing(hostile):
    hostile.run(
        """{
        document.body.insertAdjacentHTML("beforeend", "<img src=data:x onerror='window.ran = 1'>");
        const script = document.createElement("script");
        script.textContent = "window.ran = 1";
        document.body.append(script);
        const link = document.createElement("a");
        link.href = "javascript:window.ran = 1";
        document.body.append(link);
        link.click();
        }"""
    )
    hostile.wait("document.documentElement.dataset.problems?.split('\\n').length >= 3")
    assert hostile.run("typeof window.ran") == "undefined"


def test_no_table_is_cut_on_a_phone(browser):
    browser.resize(400)
    try:
        browser.wait("document.documentElement.scrollWidth === 400")
        outside = "[...document.querySelectorAll('table')].filter(t => !t.closest('.wide'))"
        assert browser.run(f"{outside}.length") == 0
        wide = "[...document.querySelectorAll('.wide')].filter(w => w.scrollWidth > w.clientWidth)"
        assert browser.run(f"{wide}.length") > 0
        # To its end: the last column is within the screen then.
        assert browser.run(
            f"{wide}.every(w => {{ w.scrollLeft = w.scrollWidth;"
            "return w.querySelector('tr').lastElementChild.getBoundingClientRect().right <= 400; })"
        )
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


TICKS = "[...{}.querySelectorAll('.{}tick text')].map(t => t.textContent)"


def test_ticks_are_short_numbers(browser):
    assert browser.run(TICKS.format(plot("curves-Pong-v5"), "x")) == [
        "0",
        "5k",
        "10k",
        "15k",
        "20k",
    ]
    assert set(browser.run(TICKS.format(plot("profiles"), "y"))) >= {"0", "0.2", "1"}


LOGARITHMIC = """(async () => {
    const plot = document.createElement("div");
    document.querySelector("main").append(plot);
    const layout = { title: { text: "" }, margin: { t: 0 }, height: 400, yaxis: { type: "log" } };
    await draw(plot, { data: [{ y: %s }], layout });
    const ticks = [...plot.querySelectorAll(".ytick text")].map((tick) => tick.textContent);
    plot.remove();
    return ticks;
})()"""


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.002, 0.05], ["0.002", "0.005", "0.01", "0.02", "0.05"]),
        ([900, 11_000], ["1k", "2k", "5k", "10k"]),
        ([0.0001, 2_000_000], ["0.0001", "0.01", "1", "100", "10k", "1M"]),
    ],
)
def test_a_logarithmic_axis_has_the_same_numbers(browser, values, ticks):
    assert set(browser.run(LOGARITHMIC % values)) >= set(ticks)


def test_a_long_title_is_broken_and_not_cut(browser):
    script = """(async () => {
        const plot = document.createElement("div");
        plot.style.width = "340px";
        document.querySelector("main").append(plot);
        const title = { text: "Gradient variance times samples, normalised advantages", x: 0 };
        await draw(plot, { data: [{ y: [1] }], layout: { title, margin: { t: 44 }, height: 300 } });
        const text = plot.querySelector(".gtitle").getBoundingClientRect();
        const found = [text.right - plot.getBoundingClientRect().left, plot.clientHeight];
        plot.remove();
        return found;
    })()"""
    right, height = browser.run(script)
    assert right <= 340
    assert height == 320
