import dataclasses
import html
import itertools
import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pages import Elements

from isobatch.errors import UserError
from isobatch.estimate import Estimate
from isobatch.pages import figures
from isobatch.run.store import EVALUATIONS
from isobatch.study import report
from isobatch.study.claims import Claim
from isobatch.study.design import Cell, Study, from_toml, load
from isobatch.study.queue import Queue
from isobatch.study.records import Result, sha256
from isobatch.study.report import reproduce, summary
from isobatch.study.report.page import SYMBOLS
from isobatch.study.results import Results
from isobatch.study.stats import (
    bootstrap_ci,
    bootstrap_difference,
    bootstrap_pair_ci,
    iqm,
    mean,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from isobatch.study.verdict import verdicts

SHAPES = {
    "8x64": {"n_envs": 8, "n_steps": 64},
    "8x128": {"n_envs": 8, "n_steps": 128},
    "16x64": {"n_envs": 16, "n_steps": 64},
    "16x128": {"n_envs": 16, "n_steps": 128},
}
STUDY = Study(
    name="shapes",
    title="Four shapes",
    note="The same budget in four shapes.",
    envs=("Breakout-v5", "Pong-v5"),
    budget=20_000,
    seeds=(1, 2, 3, 4, 5),
    arms=SHAPES,
    base={"n_minibatches": 4},
    evaluate=10,
    claims=(
        Claim("More environments are better.", "16x128", "8x64", "a book, page 7"),
        Claim("Longer rollouts are the same.", "8x128", "8x64", margin=0.3),
        Claim("Width gains more than length.", ("16x64", "8x64"), ("8x128", "8x64")),
        Claim("Short and narrow learns faster.", "8x64", "16x128", measure="curve"),
    ),
)
SEEDS = list(STUDY.seeds)
HOSTILE = "<script>alert(1)</script>"


def write_study(root: Path, study: Study, columns: int = 3, rows: int = 10) -> Results:
    """Write a study directory as if all its runs had been trained."""
    Queue.create(root, study)
    for arm, env in itertools.product(study.arms, study.envs):
        recipe = study.recipe(Cell(arm, env, study.seeds[0])).to_toml()
        for seed in study.seeds:
            own = re.sub("^seed = .*", f"seed = {seed}", recipe, flags=re.MULTILINE)
            write_run(root, study, Cell(arm, env, seed), own, columns, rows)
    return Results.load(root)


def write_run(
    root: Path, study: Study, cell: Cell, recipe: str, columns: int = 3, rows: int = 10
) -> None:
    path = Queue(root, study).run_path(cell)
    path.mkdir(parents=True)
    (path / "recipe.toml").write_text(recipe)
    random = np.random.default_rng([list(study.arms).index(cell.arm), cell.seed, len(cell.env)])
    score = 2.0 + list(study.arms).index(cell.arm) + random.normal()
    lines = [
        {
            "env_steps": study.budget * (row + 1) // rows,
            "episode_return": None if row == 0 else score * row / rows,
            "entropy": 1 / (row + 1),
            "n_envs": study.arms[cell.arm].get("n_envs", 1),
            **{f"metric_{index}": random.normal() for index in range(columns)},
            "time": "2026-01-01T00:00:00",
        }
        for row in range(rows)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    marks = [
        {"mark": study.budget * mark // 16, "episode_return": score * mark / 16}
        for mark in range(17)
    ]
    (path / EVALUATIONS).write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    result = Result(
        score=score,
        training_return=lines[-1]["episode_return"],
        env_steps=study.budget,
        seconds=12.5,
        restarts=0,
        metrics_sha256=sha256(path / "metrics.jsonl"),
        recipe_sha256=sha256(path / "recipe.toml"),
        evaluations_sha256=sha256(path / EVALUATIONS),
    )
    queue_file(root, cell, "done").write_text(json.dumps(dataclasses.asdict(result)))


def queue_file(root: Path, cell: Cell, kind: str) -> Path:
    return root / "queue" / f"{cell.key}.{kind}"


def fail(root: Path, cell: Cell, reason: str) -> None:
    queue_file(root, cell, "done").unlink()
    queue_file(root, cell, "failed").write_text(json.dumps({"kind": "failed", "reason": reason}))


def elements(root: Path) -> Elements:
    return Elements(report.write(root).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    root = tmp_path_factory.mktemp("complete") / "study"
    results = write_study(root, STUDY, rows=100)
    return results, elements(root)


def test_title_and_counts(complete):
    _, page = complete
    assert "Four shapes The same budget in four shapes. 4 arms" in page.words
    assert re.search(r"4 arms \S 2 environments \S 5 seeds", page.words)
    assert "20,000 environment steps each" in page.words
    assert "40 done , 0 failed , 0 damaged , 0 missing" in page.words
    assert "left out" not in page.words


def test_verdicts_come_first_with_their_numbers(complete):
    results, page = complete
    place = 0
    for verdict in verdicts(results):
        place = page.words.index(verdict.claim.text, place)
        card = page.words[place : place + 500]
        assert page.words[:place].rstrip().endswith(verdict.verdict)
        effect = f"{verdict.effect:+.3f} [{verdict.low:+.3f}, {verdict.high:+.3f}]"
        assert effect in card
        assert f"adjusted {verdict.p:.3g}" in card
        assert f"improvement {verdict.probability:.3f}" in card
        assert f"seeds {verdict.runs}" in card
        assert verdict.claim.source in card
    assert place < page.words.index("Aggregate over environments")
    assert "98.8% bootstrap intervals" in page.words
    assert "gain of 16x64 over 8x64 against gain of 8x128 over 8x64" in page.words
    assert "difference of the normalised area under the curve" in page.words
    assert {verdict.verdict for verdict in verdicts(results)} == set(SYMBOLS)


def test_aggregates_are_those_of_the_scores(complete):
    results, page = complete
    for arm in STUDY.arms:
        scores = results.scores(arm, SEEDS)
        row = f"{arm} " + " ".join(
            f"{statistic(scores):.3f} [{low:.3f}, {high:.3f}]"
            for statistic in (iqm, mean, optimality_gap)
            for low, high in [bootstrap_ci(scores, statistic)]
        )
        assert row in page.words
    dots = page.data["figures"]["IQM"]["data"]
    expected = [iqm(results.scores(arm, SEEDS)) for arm in STUDY.arms]
    assert [dot["x"][0] for dot in dots] == pytest.approx(expected, rel=1e-3)
    _, high = bootstrap_ci(results.scores("8x64", SEEDS))
    assert dots[0]["x"][0] + dots[0]["error_x"]["array"][0] == pytest.approx(high, rel=1e-3)


def test_scales_say_what_0_and_1_are(complete):
    _, page = complete
    assert "Breakout-v5 1.7 30.5 0: random play, published (Wang et al. 2016" in page.words
    assert "Pong-v5 -20.7 14.6 0: random play, published" in page.words
    assert "1: human play, published" in page.words


def test_profiles_are_those_of_the_scores(complete):
    results, page = complete
    traces = page.data["figures"]["profiles"]["data"]
    below, above, line = traces[0], traces[1], traces[8]
    assert [trace.get("meta") for trace in (below, above, line)] == ["band", "band", None]
    assert {trace["name"] for trace in (below, above, line)} == {"8x64"}
    scores = results.scores("8x64", SEEDS)
    at = line["x0"] + line["dx"] * np.arange(101)
    assert line["y"] == pytest.approx(performance_profile(scores, at), abs=1e-3)
    assert (line["y"][0], line["y"][-1]) == (1, 0)
    bounds = bootstrap_ci(scores, lambda array: performance_profile(array, at))
    low, high = map(np.asarray, bounds)
    assert below["y"] == pytest.approx(low, abs=1e-3)
    assert above["y"] == pytest.approx(high, abs=1e-3)


def test_learning_curves_are_means_over_runs(complete):
    results, page = complete
    traces = page.data["figures"]["curves-Pong-v5"]["data"]
    runs = [trace for trace in traces if trace.get("meta") == "run"]
    assert len(runs) == 20
    below, above, line = (
        trace for trace in traces if trace["name"] == "8x128" and trace not in runs
    )
    at = np.linspace(0, 20_000, 101)
    curves = [results.learning_curve(Cell("8x128", "Pong-v5", seed), at) for seed in STUDY.seeds]
    expected = np.mean(curves, axis=0)
    assert [math.nan if y is None else y for y in line["y"]] == pytest.approx(
        expected, rel=1e-3, abs=1e-4, nan_ok=True
    )
    assert line["x0"] == at[0]
    half = 2.776445 * np.std(curves, axis=0, ddof=1)[-1] / math.sqrt(5)
    assert [below["y"][-1], above["y"][-1]] == pytest.approx(
        [expected[-1] - half, expected[-1] + half], rel=1e-3
    )


def test_improvement_has_every_pair_with_its_interval(complete):
    results, page = complete
    x, y = (results.scores(arm, SEEDS) for arm in ("8x64", "16x128"))
    low, high = bootstrap_pair_ci(x, y)
    row = f"8x64 16x128 {probability_of_improvement(x, y):.3f} [{low:.3f}, {high:.3f}]"
    assert row in page.words
    assert len(page.data["figures"]["improvement"]["data"]) == 6


def test_many_arms_make_a_matrix_of_improvement(tmp_path):
    arms = {f"rate {rate}": {"learning_rate": rate * 1e-4} for rate in range(1, 7)}
    study = dataclasses.replace(STUDY, arms=arms, claims=(), seeds=(1, 2))
    results = write_study(tmp_path / "study", study)
    (matrix,) = elements(tmp_path / "study").data["figures"]["improvement"]["data"]
    x, y = (results.scores(arm, [1, 2]) for arm in ("rate 2", "rate 5"))
    assert matrix["z"][1][4] == pytest.approx(probability_of_improvement(x, y), abs=1e-3)
    assert matrix["z"][4][1] == pytest.approx(1 - matrix["z"][1][4], abs=1e-3)
    assert matrix["z"][3][3] is None


def test_metrics_are_means_over_runs(complete):
    results, page = complete
    metrics = page.data["metrics"]
    assert list(metrics["values"]) == [
        "episode_return", "entropy", "n_envs", "metric_0", "metric_1", "metric_2"
    ]  # fmt: skip
    pong, sixteen = STUDY.envs.index("Pong-v5"), list(STUDY.arms).index("16x64")
    at = np.linspace(0, 20_000, metrics["points"] + 1)[1:]
    curves = [results.curve(Cell("16x64", "Pong-v5", seed), "metric_1", at) for seed in STUDY.seeds]
    assert metrics["values"]["metric_1"][pong][sixteen][-1] == pytest.approx(
        np.mean(curves, axis=0)[-1], rel=1e-3
    )
    assert metrics["values"]["n_envs"][pong] == [8, 8, 16, 16]


def test_heat_map_has_a_score_per_shape(complete):
    results, page = complete
    figure = page.data["figures"]["shapes"]
    expected = [[mean(results.scores(f"{n}x{t}", SEEDS)) for n in (8, 16)] for t in (64, 128)]
    assert np.array(figure["data"][0]["z"]) == pytest.approx(np.array(expected), rel=1e-3)
    assert figure["layout"]["xaxis"]["ticktext"] == ["8", "16"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["64", "128"]


def test_arms_of_one_length_make_no_heat_map(tmp_path):
    arms = {f"{n}x64": {"n_envs": n, "n_steps": 64} for n in (4, 8, 16, 32)}
    write_study(tmp_path / "study", dataclasses.replace(STUDY, arms=arms, claims=(), seeds=(1, 2)))
    page = elements(tmp_path / "study")
    assert "shapes" not in page.data["figures"]
    assert "rollout's shape" not in page.words


def test_every_run_is_listed_with_its_recipe(complete):
    results, page = complete
    rows = re.findall(
        r"(\S+) (Breakout|Pong)-v5 (\d) (\S+) (\S+) 20,000 12.5 0 done (\d)", page.words
    )
    assert len(rows) == 40
    for arm, env, seed, score, training, recipe in rows:
        result = results.records[Cell(arm, f"{env}-v5", int(seed))].result
        assert result is not None
        assert (score, training) == (f"{result.score:#.4g}", f"{result.training_return:#.4g}")
        assert f"Recipe {recipe}: {arm}, {env}-v5 env" in page.words
    assert page.words.count("total_timesteps = 20000") == 8
    assert "seed = " not in page.words


def test_failed_damaged_and_missing_runs_are_listed_and_not_counted(tmp_path):
    root = tmp_path / "study"
    write_study(root, STUDY)
    failed, damaged, missing = (
        Cell("8x64", "Pong-v5", 1), Cell("8x128", "Breakout-v5", 2), Cell("8x64", "Breakout-v5", 2)
    )  # fmt: skip
    fail(root, failed, "training diverged <here>")
    with (Queue.open(root).run_path(damaged) / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 1, "episode_return": 1e9}\n')
    queue_file(root, missing, "done").unlink()
    page = elements(root)
    assert "37 done , 1 failed , 1 damaged , 1 missing" in page.words
    assert f"failed : {failed}. training diverged <here>" in page.words
    assert f"damaged : {damaged}. runs/8x128/Breakout-v5/2/metrics.jsonl was changed" in page.words
    assert f"missing : {missing}." in page.words
    assert "left out of every number" in page.words
    assert str(tmp_path) not in page.text
    assert "3 of 5 seeds" in page.words
    results = Results.load(root)
    assert f"8x64 {iqm(results.scores('8x64', [3, 4, 5])):.3f} [" in page.words
    traces = page.data["figures"]["curves-Breakout-v5"]["data"]
    assert sum(trace.get("meta") == "run" for trace in traces) == 18
    assert max(max(y for y in trace["y"] if y is not None) for trace in traces) < 1e3
    assert re.search(r"8x64 Pong-v5 1 - - - - - failed", page.words)


def without_episodes(root: Path, cell: Cell) -> None:
    """Let a run be one in which no episode ended, and which was not evaluated."""
    path, record = Queue.open(root).run_path(cell), queue_file(root, cell, "done")
    metrics, played = path / "metrics.jsonl", path / EVALUATIONS
    rows = [json.loads(line) | {"episode_return": None} for line in metrics.open()]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    played.write_text("")
    hashes = {"metrics_sha256": sha256(metrics), "evaluations_sha256": sha256(played)}
    record.write_text(json.dumps(json.loads(record.read_text()) | hashes))


def test_curves_of_fewer_seeds_say_so(tmp_path):
    root = tmp_path / "study"
    write_study(root, STUDY)
    without_episodes(root, Cell("16x64", "Pong-v5", 2))
    fail(root, Cell("8x64", "Breakout-v5", 1), "training diverged")
    for seed in SEEDS:
        without_episodes(root, Cell("8x128", "Breakout-v5", seed))
    page = elements(root)
    assert (
        "Breakout-v5: 8x64, 4 of 5 seeds; 8x128, 0 of 5 seeds. Pong-v5: 16x64, 4 of 5 seeds."
        in page.words
    )
    curves = page.data["figures"]["curves-Pong-v5"]["data"]
    names = [trace["name"] for trace in curves if trace.get("meta") is None]
    assert names == ["8x64", "8x128", "16x64 (4 of 5 seeds)", "16x128"]
    (line,) = (trace for trace in curves if trace["name"] == names[2] and "meta" not in trace)
    at, results = np.linspace(0, 20_000, 101), Results.load(root)
    drawn = [results.learning_curve(Cell("16x64", "Pong-v5", seed), at) for seed in (1, 3, 4, 5)]
    assert line["y"] == pytest.approx(np.mean(drawn, axis=0), rel=1e-3, abs=1e-4)
    metrics = page.data["metrics"]
    pong, breakout = metrics["names"]["episode_return"][1], metrics["names"]["entropy"][0]
    assert pong == {"2": "16x64 (4 of 5 seeds)"}
    assert breakout == {"0": "8x64 (4 of 5 seeds)"}
    assert metrics["names"]["entropy"][1] == {}
    assert metrics["values"]["episode_return"][0][1] == []


def test_a_complete_study_says_nothing_of_fewer_seeds(complete):
    _, page = complete
    assert "Not all seeds are drawn" not in page.words
    assert not any(any(names) for names in page.data["metrics"]["names"].values())


SCORES = arrays(
    float,
    st.tuples(st.integers(2, 7), st.integers(1, 4)),
    elements=st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 0.1, 0.3, 1.0, 1e100])),
)


@given(SCORES, st.integers(0, 6))
def test_estimates_lie_in_their_own_intervals(scores, rolled):
    other = np.roll(scores, rolled, axis=0)[:, ::-1] + 0.1
    arms = {"a": scores, "b": other}
    estimates = [
        *(each for arms in summary.aggregates(arms).values() for each in arms.values()),
        *summary.improvements(arms).values(),
    ]
    estimates.append(
        Estimate(mean(scores) - mean(other), *bootstrap_difference(scores, other, mean))
    )
    for value, low, high in estimates:
        assert low <= value <= high
    at = summary.thresholds(arms)
    curves = dict(enumerate(scores))
    for band in (*summary.profiles(arms, at).values(), summary.mean_band(curves)):
        known = ~np.isnan(band.low)
        assert (band.low <= band.middle)[known].all()
        assert (band.middle <= band.high)[known].all()
    drawn = [figures.dot(0, estimate, 0) for estimate in estimates]
    for bar in (trace["error_x"] for trace in drawn):
        assert bar["array"][0] >= 0
        assert bar["arrayminus"][0] >= 0


def test_a_study_without_a_complete_seed_still_has_a_page(tmp_path):
    root = tmp_path / "study"
    study = dataclasses.replace(STUDY, envs=(*STUDY.envs, "MiniGrid-Empty-5x5-v0"))
    Queue.create(root, study)
    cell = Cell("8x64", "Pong-v5", 1)
    write_run(root, study, cell, study.recipe(cell).to_toml())
    page = elements(root)
    assert "No seed has all runs" in page.words
    assert "0 seeds with all runs of these arms finished, 5 needed" in page.words
    assert "59 missing" in page.words
    assert list(page.data["figures"]) == ["curves-Pong-v5", "metric-Pong-v5"]


def test_one_complete_seed_gets_no_intervals(tmp_path):
    study = dataclasses.replace(STUDY, seeds=(7,))
    results = write_study(tmp_path / "study", study)
    page = elements(tmp_path / "study")
    value = f"{iqm(results.scores('8x64', [7])):.3f}"
    assert re.search(rf"8x64 {re.escape(value)} \S+ \S+ 8x128", page.words)
    assert "One seed allows no interval" in page.words
    assert "error_x" not in page.data["figures"]["IQM"]["data"][0]
    assert not {"profiles", "improvement"} & set(page.data["figures"])


def test_nothing_done_is_said(tmp_path):
    Queue.create(tmp_path / "study", STUDY)
    with pytest.raises(UserError, match="no run of the study is finished"):
        report.write(tmp_path / "study")
    with pytest.raises(UserError, match="holds no study"):
        report.write(tmp_path)
    assert not list(tmp_path.rglob("*.html"))


def test_names_from_files_are_text(tmp_path):
    option = "level=</script><!--<img src=x onerror=alert(2)>"
    study = dataclasses.replace(
        STUDY,
        name=HOSTILE,
        title=f"Title {HOSTILE}",
        note="half a character: \ud800",
        arms={HOSTILE: {"env_options": [option]}, "<b>bold</b> & %{x}": {}},
        claims=(Claim(f"Claim {HOSTILE}", HOSTILE, "<b>bold</b> & %{x}", f"source {HOSTILE}"),),
    )
    root = tmp_path / "study"
    write_study(root, study, columns=0)
    for path in root.glob("runs/*/*/*/metrics.jsonl"):
        text = path.read_text().replace('"entropy"', '"<i>entropy</script>"')
        path.write_text(text)
    for cell in study.cells:
        file = queue_file(root, cell, "done")
        metrics = Queue.open(root).run_path(cell) / "metrics.jsonl"
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"metrics_sha256": sha256(metrics)})
        )
    page = elements(root)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3
    assert not {"img", "b", "i"} & set(tags)
    assert f"Title {HOSTILE}" in page.words
    assert f"Claim {HOSTILE}" in page.words
    assert option in page.words
    assert "<i>entropy</script>" in page.data["metrics"]["values"]
    names = [trace["name"] for trace in page.data["figures"]["metric-Pong-v5"]["data"]]
    assert html.unescape("".join(names).replace("<br>", "")) == f"{HOSTILE}<b>bold</b> & %{{x}}"
    assert not any("<script" in name or "<b>" in name for name in names)


def test_the_page_loads_nothing(complete):
    _, page = complete
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "base", "object", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    style = page.scripts[0]
    assert "url(" not in style
    assert "@import" not in style
    policy = [
        attributes["content"]
        for _, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy[0] is not None
    assert policy[0].startswith("default-src 'none'")
    assert "http" not in policy[0]
    scripts = policy[0].partition("script-src ")[2].partition(";")[0].split()
    assert all(each.startswith("'sha256-") for each in scripts)
    assert len(scripts) == 2


def test_a_hundred_runs_stay_below_six_megabytes(tmp_path):
    # Arms cost more than seeds: each has curves of every metric, a recipe and pairs.
    rates = {f"rate {rate}": {"learning_rate": 1e-4 * (rate + 1)} for rate in range(50)}
    study = dataclasses.replace(STUDY, arms=rates, envs=("Pong-v5",), seeds=(1, 2), claims=())
    write_study(tmp_path / "study", study, columns=26, rows=30)
    assert report.write(tmp_path / "study").stat().st_size < 6_000_000


def test_the_same_study_gives_the_same_page(tmp_path):
    study = dataclasses.replace(STUDY, seeds=(1, 2))
    write_study(tmp_path / "study", study)
    first = report.write(tmp_path / "study").read_bytes()
    assert report.write(tmp_path / "study", tmp_path / "other.html").read_bytes() == first
    with pytest.raises(UserError, match="cannot write the report"):
        report.write(tmp_path / "study", tmp_path / "absent" / "page.html")


def test_pages_written_at_the_same_time_are_whole(tmp_path, monkeypatch):
    # Making the page takes far longer than writing it: two drivers would rarely meet there.
    monkeypatch.setattr("isobatch.study.report.page.render", lambda root: "page" * 100_000)
    Queue.create(tmp_path, STUDY)
    together = threading.Barrier(2, timeout=60)

    def write_often():
        for _ in range(50):
            together.wait()
            report.write(tmp_path)

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(write_often) for _ in range(2)]:
            each.result()
    assert (tmp_path / "report.html").read_text() == "page" * 100_000
    assert {file.name for file in tmp_path.iterdir()} == {"queue", "report.html", "study.json"}


def test_a_page_takes_a_links_place(tmp_path, monkeypatch):
    monkeypatch.setattr("isobatch.study.report.page.render", lambda root: "page")
    Queue.create(tmp_path, STUDY)
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".report.html.new").symlink_to("victim")
    (tmp_path / "report.html").symlink_to("victim")
    report.write(tmp_path)
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "report.html").read_text() == "page"


def test_command_of_a_preset():
    assert reproduce.command(load("n-vs-t", "paper")) == "isobatch study n-vs-t --scale paper"
    more = dataclasses.replace(load("n-vs-t"), seeds=tuple(range(1, 51)))
    assert reproduce.command(more) == "isobatch study n-vs-t --scale laptop --seeds 50"
    assert reproduce.command(dataclasses.replace(more, budget=7)) == "isobatch study n-vs-t.toml"


def test_design_makes_the_study_again(complete):
    _, page = complete
    assert "isobatch study shapes.toml" in page.words
    assert from_toml(reproduce.design(STUDY), "shapes") == STUDY
    assert html.escape("[[claims]]") in page.text
    assert reproduce.command(dataclasses.replace(STUDY, name="a b")) == "isobatch study 'a b.toml'"
    own = dataclasses.replace(STUDY, envs=("module:Id-v0", "gymnasium:Acrobot-v1"))
    assert reproduce.command(own) == "isobatch study shapes.toml --env module:Id-v0"


def test_a_design_that_toml_cannot_say_is_shown_as_json():
    study = dataclasses.replace(STUDY, base={"max_grad_norm": None})
    assert reproduce.command(study) == ""
    assert Study.from_json(reproduce.design(study)) == study


def test_scores_that_cannot_be_normalised_are_shown_raw_and_a_line_says_so(tmp_path):
    envs = ("Pong-v5", "gymnasium:Blackjack-v1")
    results = write_study(tmp_path / "study", dataclasses.replace(STUDY, envs=envs))
    page = elements(tmp_path / "study")
    assert "Scores of gymnasium:Blackjack-v1 cannot be normalised" in page.words
    assert '[scores] "gymnasium:Blackjack-v1" = { random = ..., reference = ... }' in page.words
    assert "Profiles need normalised scores" in page.words
    assert "IQM" not in page.data["figures"]
    assert "improvement" in page.data["figures"]
    assert "curves-gymnasium-Blackjack-v1" in page.data["figures"]
    raw = np.mean(list(results.raw("8x64", "gymnasium:Blackjack-v1").values()))
    assert f"{raw:.3g}"[:3] in page.words
    (margin,) = (each for each in verdicts(results) if each.claim.margin)
    assert margin.reason in page.words[page.words.index("Longer rollouts are the same.") :].replace(
        "A margin", "a margin"
    )


def test_given_scores_are_part_of_the_design_and_named_as_the_source(tmp_path):
    given = {"gymnasium:Blackjack-v1": {"random": -0.4, "reference": 1}}
    study = dataclasses.replace(STUDY, envs=("gymnasium:Blackjack-v1",), scores=given)
    write_study(tmp_path / "study", study)
    page = elements(tmp_path / "study")
    assert "gymnasium:Blackjack-v1 -0.4 1 given by the study" in page.words
    assert from_toml(reproduce.design(study), study.name) == study
