"""The page of a run, and of several: what it says is what the files say."""

import dataclasses
import itertools
import json
import math
import shlex
import shutil
from pathlib import Path

import pytest
from made_up_run import FINDINGS, MEASURED, RECIPE, SPARSE, write_run
from pages import Elements

from isobatch import advice, cli, report, reproduce
from isobatch.advice.rules import policy
from isobatch.errors import UserError
from isobatch.pages.page import number
from isobatch.presets import preset
from isobatch.recipe import Recipe
from isobatch.report import bands, video
from isobatch.report.course import MOST_DRAWN
from isobatch.run import training

GOLDEN = Path(__file__).parents[1] / "golden" / "run-0.1.0"
HOSTILE = "<script>alert(1)</script>"
GIF = bytes.fromhex(
    "47494638396101000100800100ff0000ffffff2c00000000010001000002024401003b"
)  # One red pixel.


def rows_of(path: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


def page_of(*courses) -> Elements:
    return Elements(report.render(courses))


def found(path: Path, **changes):
    return dataclasses.replace(report.read(path), **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def page(run):
    return page_of(found(run, findings=FINDINGS))


def points(page: Elements, name: str, axis: str = "env_steps", trace: int = -1):
    """Return a figure's points as its reader sees them."""
    figure = page.data["figures"][name]
    return list(
        zip(
            page.data["places"][figure["along"][trace]][axis],
            figure["data"][trace]["y"],
            strict=True,
        )
    )


@pytest.mark.parametrize("axis", ["env_steps", "grad_steps", "seconds"])
@pytest.mark.parametrize(
    "column",
    ["policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance",
     "grad_norm", "learning_rate", "column:steps_per_second"],
)  # fmt: skip
def test_curves_are_the_files_numbers(page, run, column, axis):
    name = column.removeprefix("column:")
    assert points(page, column, axis) == [(row[axis], row[name]) for row in rows_of(run)]


def test_evaluations_lie_where_training_was(page, run):
    rows = {row["iterations"]: row for row in rows_of(run)} | {
        0: {"grad_steps": 0, "seconds": 0, "env_steps": 0}
    }
    played = rows_of(run, "evaluations.jsonl")
    for axis in ("env_steps", "grad_steps", "seconds"):
        expected = [(rows[each["iterations"]][axis], each["episode_return"]) for each in played]
        assert points(page, "evaluation", axis) == expected
    low, high, _ = (trace["y"] for trace in page.data["figures"]["evaluation"]["data"])
    assert [(a + b) / 2 for a, b in zip(low, high, strict=True)] == [
        each["episode_return"] for each in played
    ]
    assert high[0] - low[0] == 25


def test_what_was_measured_now_and_then_is_drawn_where_it_was(page, run):
    figure = page.data["figures"]["weight_norm"]
    assert [trace["name"] for trace in figure["data"]] == ["actor", "critic"]
    assert figure["layout"]["yaxis"]["title"]["text"] == "weight_norm"
    measured = [row for row in rows_of(run) if row["iterations"] % MEASURED == 1]
    for trace, column in enumerate(("weight_norm_actor", "weight_norm_critic")):
        drawn = points(page, "weight_norm", trace=trace)
        assert drawn == [(row["env_steps"], row[column]) for row in measured]
        assert figure["data"][trace]["mode"] == "lines+markers"
    for name in SPARSE:
        base = name.removesuffix("_actor").removesuffix("_critic")
        assert base in page.data["figures"]
        assert f"column:{name}" not in page.data["figures"]
        assert f"{base} " in page.words


def test_the_verdict_comes_first_in_the_order_of_its_findings(page):
    ids = [each["id"] for tag, each in page.tags if tag == "section"]
    assert ids == [
        "verdict", "return", "updates", "diagnostics", "time", "batch", "timeline", "others",
        "reproduce",
    ]  # fmt: skip
    words = page.words.partition("Return Evaluations")[0]
    assert "1 problem, 1 warning, 1 note." in words
    for first, second in itertools.pairwise(FINDINGS):
        assert 0 < words.index(first.sentence) < words.index(second.sentence)
    assert "Try: take smaller steps. --learning-rate 0.0005" in words
    assert "measured 0.0612 threshold 0.02 since 20,480 environment steps rule kl-high" in words
    assert (
        "Last evaluation: mean return 470.2 over 4 episodes at 61,440 environment steps, with "
        "sampled actions"
    ) in words
    kinds = [each["class"] for tag, each in page.tags if tag == "article"]
    assert kinds == [f"card finding-{each.severity}" for each in FINDINGS]


def test_findings_are_on_a_timeline_from_when_on_they_hold(page):
    figure = page.data["figures"]["timeline"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["kl-high", "few-environments", ""]
    starts = [points(page, "timeline", trace=place) for place in range(3)]
    assert starts == [
        [(20_480, 0), (61_440, 0)], [(1024, 1), (61_440, 1)], [(0, 2), (61_440, 2)]
    ]  # fmt: skip
    grad_steps = points(page, "timeline", "grad_steps", trace=0)
    assert [at for at, _ in grad_steps] == [800, 2400]


def test_advised_bands_are_drawn_from_their_constants(page):
    for name, low, high in (
        ("approx_kl", 0.0, bands.APPROX_KL_MOST),
        ("clip_fraction", bands.CLIP_FRACTION_LEAST, policy.CLIP_HIGH_EPOCHS),
    ):
        (band,) = page.data["figures"][name]["layout"]["shapes"]
        assert (band["y0"], band["y1"]) == (low, high)
    assert "clip_fraction from 0.01 up to about 0.2" in page.words
    once = bands.advised(RECIPE.replace(n_epochs=1))
    assert once["clip_fraction"].high == policy.CLIP_HIGH
    assert "clip_fraction" not in bands.advised(RECIPE.replace(objective="kl"))


def test_time_adds_up_and_its_means_are_the_files(page, run):
    rows = rows_of(run)
    figure = page.data["figures"]["time"]
    names = ("env_seconds", "acting_seconds", "learning_seconds", "other_seconds")
    for name, trace in zip(names, figure["data"], strict=True):
        expected = [100 * row[name] / sum(row[each] for each in names) for row in rows]
        assert trace["y"] == pytest.approx(expected)
        mean = sum(row[name] for row in rows) / len(rows)
        assert f"{number(1000 * mean)} ms" in page.words
    assert "Profile: mean of 60 iterations, without the first" in page.words
    assert "gradient (forward and backward) 100.0 ms 58.8%" in page.words
    assert figure["layout"]["legend"]["traceorder"] == "normal"
    assert "start-up: 500 ms (Python and imports 500 ms)" in page.words


def test_the_batch_is_drawn_for_a_screen_and_for_a_phone(page):
    assert [tag for tag, _ in page.tags].count("svg") == 2
    assert "updates : 4 x 10 epochs = 40 gradient steps per iteration" in page.words
    assert "epoch 10" in page.words


def test_a_batch_that_changed_is_listed(tmp_path):
    path = write_run(tmp_path / "run", rows=4)
    rows = rows_of(path)
    for row in rows[2:]:
        row |= {"n_envs": 16, "n_minibatches": 8}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(report.read(path))
    assert "the batch changed while training" in page.words
    assert "0 8 128 4 10 2,048 16 128 8 10" in page.words


def test_a_run_without_evaluations_shows_the_training_return_and_says_so(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "evaluations.jsonl").unlink()
    page = page_of(report.read(path))
    assert "not evaluated while training, so this is the training return" in page.words
    assert "evaluation" not in page.data["figures"]
    rows = rows_of(path)
    expected = [(row["env_steps"], row["episode_return"]) for row in rows]
    assert expected[0][1] is None, "before the first episode has ended"
    assert points(page, "training") == expected
    last = rows[-1]["episode_return"]
    assert f"Training return {last:#.4g} over the last 100 episodes at 61,440" in page.words


def test_long_runs_are_thinned_aloud_and_lose_no_measurement(tmp_path):
    count = 4 * MOST_DRAWN + 3
    path = write_run(tmp_path / "long", rows=count)
    page = page_of(report.read(path))
    assert f"Curves show every 4th of {count:,} iterations" in page.words
    rows = rows_of(path)
    drawn = points(page, "entropy")
    assert drawn == [(row["env_steps"], row["entropy"]) for row in rows[2::4]]
    assert drawn[-1][0] == rows[-1]["env_steps"]
    # Measured in every fifth row only: every fourth row alone would miss most of them.
    measured = [row for row in rows if row["policy_variance"] is not None]
    assert points(page, "policy_variance") == [
        (row["env_steps"], row["policy_variance"]) for row in measured
    ]


@pytest.mark.parametrize(("every", "words"), [(2, "2nd"), (3, "3rd"), (11, "11th"), (21, "21st")])
def test_ordinals(tmp_path, every, words):
    path = write_run(tmp_path / "run", rows=every * MOST_DRAWN)
    assert f"every {words} of" in page_of(report.read(path)).words


def test_a_torn_last_line_is_left_out(tmp_path):
    path = write_run(tmp_path / "run", rows=5)
    whole = points(page_of(report.read(path)), "entropy")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 61')
    with (path / "evaluations.jsonl").open("a") as file:
        file.write('{"mark"')
    page = page_of(report.read(path))
    assert points(page, "entropy") == whole
    assert "could not be read" not in page.words


STRANGE = {
    "surprise": 0.5, HOSTILE: 3, "words": "several", "list": [1, 2], "flag": True, "huge": 10**400,
    "table": {"a": 1}, "__proto__": 7, "nothing": None, "": 4,
}  # fmt: skip


def test_unknown_columns_are_shown_where_they_are_numbers(tmp_path):
    path = write_run(tmp_path / "run", rows=3)
    rows = [row | STRANGE for row in rows_of(path)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).replace("0.5,", '0.5, "far": 1e999,')
    (path / "metrics.jsonl").write_text(lines)
    course = dataclasses.replace(report.read(path, HOSTILE), findings=FINDINGS)
    text = report.render([course])
    page = Elements(text)
    others = {name for name in page.data["figures"] if name.startswith("column:")}
    assert {"column:surprise", f"column:{HOSTILE}", "column:__proto__"} <= others
    assert not {f"column:{name}" for name in ("words", "list", "flag", "huge", "far")} & others
    assert points(page, "column:surprise") == [(row["env_steps"], 0.5) for row in rows]
    assert HOSTILE not in text
    assert [tag for tag, _ in page.tags].count("script") == 3


def test_an_older_version_is_shown_as_far_as_it_goes(tmp_path):
    page = page_of(report.read(GOLDEN))
    rows = rows_of(GOLDEN)
    assert points(page, "value_loss") == [(row["env_steps"], row["value_loss"]) for row in rows]
    assert "time" not in page.data["figures"]
    assert "Where the time went" not in page.words
    assert "Finished: " in page.words


@pytest.mark.parametrize("is_there", [True, False])
def test_an_empty_run_shows_its_batch_and_its_recipe(tmp_path, is_there):
    path = write_run(tmp_path / "run", rows=0)
    (path / "evaluations.jsonl").unlink()
    (path / "profile.json").unlink()
    if not is_there:
        (path / "metrics.jsonl").unlink()
    page = page_of(report.read(path))
    assert "No iteration is recorded yet, of 61,440 environment steps asked for." in page.words
    assert "No rows yet: only the recipe was looked at. Found: nothing above a note." in page.words
    assert page.data["figures"] == {}
    assert "epoch 10" in page.words
    assert 'env = "CartPole-v1"' in page.words


def test_a_run_that_goes_on_says_how_far_it_is(tmp_path):
    page = page_of(report.read(write_run(tmp_path / "run", rows=20)))
    assert "Not finished: 20,480 of 61,440 environment steps, 20 iterations" in page.words
    assert "The last row was written at 2026-11-16 22:00:20 UTC." in page.words


def test_what_beside_the_rows_is_damaged_is_said_and_left_out(tmp_path):
    path = write_run(tmp_path / "run", rows=5)
    (path / "evaluations.jsonl").write_text("no\n")
    (path / "profile.json").write_text('{"iterations": "many"}')
    (path / "videos").write_text("no folder")
    page = page_of(report.read(path))
    assert "Some of run could not be read" in page.words
    assert "evaluations.jsonl, line 1 is not JSON" in page.words
    assert str(tmp_path) not in page.words
    assert "so this is the training return" in page.words
    assert "Profile" not in page.words


@pytest.mark.parametrize("line", ["no\n", "[1]\n", '{"a": NaN}\n'])
def test_damaged_rows_are_one_line(tmp_path, line):
    path = write_run(tmp_path / "run", rows=2)
    (path / "metrics.jsonl").write_text(line)
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1"):
        report.read(path)


@pytest.mark.parametrize(
    "row",
    [{}, {"env_steps": "x"}, {"env_steps": None, "entropy": 1}, {"env_steps": 1, "n_envs": -3},
     {"env_steps": 10**300, "iterations": -1, "seconds": "never", "episodes": {}, "time": 3}],
)  # fmt: skip
def test_rows_of_strangers_make_a_page(tmp_path, row):
    path = write_run(tmp_path / "run", rows=0)
    (path / "metrics.jsonl").write_text(3 * (json.dumps(row) + "\n"))
    (path / "evaluations.jsonl").write_text(
        json.dumps(row | {"episode_return": 3, "episode_return_std": "wide"}) + "\n"
    )
    page_of(found(path, findings=FINDINGS))


def test_findings_are_those_of_advise(tmp_path):
    path = write_run(tmp_path / "run", tilt=8)
    found = report.read(path).findings
    assert found == list(advice.advise(path))
    assert "kl-high" in [each.rule for each in found]
    page = page_of(report.read(path))
    assert all(each.sentence in page.words for each in found)
    words = page.words.partition("Return Evaluations")[0]
    assert advice.advise(path).verdict.sentence in words
    assert f"Found: {advice.advise(path).counts}." in words
    assert len(page.data["figures"]["timeline"]["data"]) == len(found)


@pytest.mark.parametrize(
    "recipe",
    [
        preset("CartPole-v1"),
        preset("CartPole-v1", algo="ppo-ewma", seed=7, total_timesteps=20_000, eval_marks=10),
        preset("Pendulum-v1", max_grad_norm=None, target_kl=0.03, stagger=True),
        preset("Pendulum-v1", hidden_sizes=(32, 16, 8), normalize_observations=False, gamma=1 / 3),
        preset("CartPole-v1", batch_schedule="0:8x128, 50k:16x128x8", env_options=("a=b c",)),
        preset("CartPole-v1", algo="pqn", n_envs=16),
    ],
)
def test_the_command_makes_the_same_recipe(recipe, monkeypatch, tmp_path):
    given = []

    def train(**settings):
        given.append(settings["recipe"])
        raise UserError("enough")

    monkeypatch.setattr(training, "train", train)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(reproduce.command(recipe))
    assert words[:2] == ["isobatch", "train"]
    cli.main(words[1:])
    Path("recipe.toml").write_text(recipe.to_toml())
    cli.main(shlex.split(reproduce.from_file(recipe))[1:])
    assert given == [recipe, recipe]


def test_a_file_names_no_module_to_import(monkeypatch):
    recipe = Recipe(env="no_such_module:Env-v0")
    assert reproduce.command(recipe) == ""
    assert reproduce.from_file(recipe).endswith("--env no_such_module:Env-v0")
    assert reproduce.command(Recipe(env="NoSuchEnv-v0")) == ""


def test_a_video_is_in_the_page(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run", rows=2)
    assert report.read(path).video is None
    (path / "videos").mkdir()
    (path / "videos" / "notes.txt").write_text("no video")
    assert report.read(path).video is None
    (path / "videos" / "a.GIF").write_bytes(GIF)
    page = page_of(report.read(path))
    (image,) = [each for tag, each in page.tags if tag == "img"]
    assert (image["src"] or "").startswith("data:image/gif;base64,R0lGOD")
    (path / "videos" / "b.mp4").write_bytes(b"moving")
    page = page_of(report.read(path))
    (film,) = [each for tag, each in page.tags if tag == "video"]
    assert film["src"] == "data:video/mp4;base64,bW92aW5n"
    assert "videos/b.mp4, the newest of 2" in page.words
    monkeypatch.setattr(video, "MOST_BYTES", 5)
    assert "videos/b.mp4 (6 B) is too large for a page" in page_of(report.read(path)).words


def test_the_page_loads_nothing(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "base", "object", "form", "video")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = [each["content"] for _, each in page.tags if "http-equiv" in each]
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    root = tmp_path_factory.mktemp("three")
    write_run(root / "a")
    write_run(root / "b", recipe=RECIPE.replace(gamma=0.9, seed=2), tilt=0.5)
    other = write_run(root / "c", recipe=RECIPE.replace(env="Acrobot-v1"), rows=20)
    (other / "evaluations.jsonl").unlink()
    return root


def test_several_runs_are_overlaid(three):
    courses = [report.read(three / name) for name in "abc"]
    courses[1] = dataclasses.replace(courses[1], findings=FINDINGS)
    page = page_of(*courses)
    assert "3 runs on CartPole-v1, Acrobot-v1" in page.words
    entropy = page.data["figures"]["entropy"]
    assert [trace["name"] for trace in entropy["data"]] == ["a", "b", "c"]
    parts = [trace["name"] for trace in page.data["figures"]["weight_norm"]["data"]]
    assert parts[:3] == ["a, actor", "a, critic", "b, actor"]
    assert page.data["figures"]["state_coverage"]["data"][0]["name"] == "a"
    assert entropy["layout"]["showlegend"]
    for place, name in enumerate("abc"):
        rows = rows_of(three / name)
        expected = [(row["env_steps"], row["entropy"]) for row in rows]
        assert points(page, "entropy", trace=place) == expected
    # Returns of different environments share no scale.
    returns = {
        name: [trace["name"] for trace in figure["data"]]
        for name, figure in page.data["figures"].items()
        if name.startswith(("evaluation", "training"))
    }
    assert returns == {"evaluation-1": ["a", "b"], "training-1": ["a", "b"], "training-2": ["c"]}
    colours = [trace["line"]["color"] for trace in entropy["data"]]
    assert page.data["figures"]["training-2"]["data"][0]["line"]["color"] == colours[2]


def test_figures_without_some_of_the_runs_say_so(tmp_path):
    paths = [write_run(tmp_path / name, rows=6) for name in "abc"]
    (paths[1] / "evaluations.jsonl").unlink()
    rows = [row | {"episode_return": None, "grad_norm": None} for row in rows_of(paths[2])]
    (paths[2] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(*map(report.read, paths))
    titles = {
        name: figure["layout"]["title"]["text"] for name, figure in page.data["figures"].items()
    }
    assert titles["evaluation"] == "Evaluation return (2 of 3 runs)"
    assert titles["training"] == "Training return (2 of 3 runs)"
    assert titles["grad_norm"] == "Gradient norm (2 of 3 runs)"
    assert titles["entropy"] == "Entropy"
    assert "Not evaluated while training, so without a curve of evaluations: b." in page.words
    assert "so there is no curve of training returns: c." in page.words
    alone = page_of(report.read(paths[1]))
    assert "without a curve" not in alone.words
    assert alone.data["figures"]["training"]["layout"]["title"]["text"] == "Training return"


def test_several_runs_have_a_table_of_scores_and_of_differences(three):
    page = page_of(*(report.read(three / name) for name in "abc"))
    last = rows_of(three / "c")[-1]["episode_return"]
    for words in (
        "a 470.2 470.2 last evaluation, 4 episodes CartPole-v1 ppo 1 61,440 2,400 10.2 finished",
        "b 245.2 245.2 last evaluation, 4 episodes CartPole-v1 ppo 2 61,440 2,400 10.2 finished",
        f"c {last:#.4g} - training, last 100 episodes Acrobot-v1 ppo 1 20,480 800 3.4 not finished",
        "env CartPole-v1 CartPole-v1 Acrobot-v1",
        "gamma 0.99 0.9 0.99",
        "seed 1 2 1",
    ):
        assert words in page.words
    rest = page.words.partition("What differs")[2].partition("Return")[0]
    assert "gae_lambda" not in rest


def test_bands_that_runs_do_not_share_are_not_drawn(three, tmp_path):
    once = write_run(tmp_path / "once", recipe=RECIPE.replace(n_epochs=1))
    page = page_of(report.read(three / "a"), report.read(once))
    assert "shapes" not in page.data["figures"]["clip_fraction"]["layout"]
    assert "shapes" in page.data["figures"]["approx_kl"]["layout"]


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = cli.main(["report", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_command_writes_into_the_run(command, three, tmp_path, monkeypatch):
    shutil.copytree(three / "a", "mine")
    advise = advice.advise
    monkeypatch.setattr(
        advice, "advise", lambda path: dataclasses.replace(advise(path), findings=FINDINGS)
    )
    code, said, _ = command("mine")
    assert code == 0
    lines = said.splitlines()
    assert lines[0] == f"problem: {FINDINGS[0].sentence}"
    assert lines[-1] == "report of 1 run saved to mine/report.html"
    assert Elements(Path("mine/report.html").read_text()).data["name"] == "mine"


def test_the_command_compares_runs(command, three, tmp_path):
    shutil.copytree(three / "a", "x/mine")
    shutil.copytree(three / "b", "y/mine")
    code, said, _ = command("x/mine", "y/mine", "x/../x/mine")
    assert (code, said.splitlines()[-1]) == (0, "report of 2 runs saved to report.html")
    figure = Elements(Path("report.html").read_text()).data["figures"]["entropy"]
    assert [trace["name"] for trace in figure["data"]] == ["x/mine", "y/mine"]
    assert command("x/mine", "y/mine", "--out", "here.html")[0] == 0
    assert Path("here.html").is_file()


def test_the_command_compares_the_seeds_of_a_directory(command, three):
    for seed in (10, 9):
        shutil.copytree(three / "a", f"seeds/seed-{seed}")
        Path(f"seeds/seed-{seed}/recipe.toml").write_text(RECIPE.replace(seed=seed).to_toml())
    code, said, _ = command("seeds")
    assert (code, said.splitlines()[-1]) == (0, "report of 2 runs saved to seeds/report.html")
    figure = Elements(Path("seeds/report.html").read_text()).data["figures"]["entropy"]
    assert [trace["name"] for trace in figure["data"]] == ["seed-9", "seed-10"]


def test_what_is_no_run_is_one_line_and_nothing_is_written(command, three):
    Path("study").mkdir()
    Path("study/study.json").write_text("{}")
    Path("broken").mkdir()
    Path("broken/recipe.toml").write_text("env = 3\n")
    before = sorted(Path().rglob("*"))
    for words, fragment in (
        (["nowhere"], "nowhere holds no study and no run"),
        ([three], "holds no study and no run"),
        ([three / "a", "study"], "study is a study"),
        (["broken"], "broken/recipe.toml"),
        ([three / "a", "--out", "no/such/folder.html"], "cannot write the report"),
        ([], "STUDY|RUN"),
    ):
        code, said, complaint = command(*words)
        assert (code, said, complaint.count("\n")) == (2, "", 1), words
        assert fragment in complaint
    assert sorted(Path().rglob("*")) == before


def test_exact_numbers_survive(run):
    """What JSON holds is the file's number to the last bit, not a rounding of it."""
    value = rows_of(run)[6]["policy_loss"]
    assert not math.isclose(value, float(f"{value:.4g}"), rel_tol=1e-9)
    assert points(page_of(report.read(run)), "policy_loss")[6][1] == value
