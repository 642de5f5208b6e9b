"""A run in Python: opened, shown, as a table and as a figure."""

import shutil
import sys

import pytest

import isobatch
from isobatch.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return isobatch.train(
        "CartPole-v1", n_envs=4, n_steps=32, total_timesteps=512, eval_marks=2, eval_episodes=2,
        out=tmp_path_factory.mktemp("result") / "<run>", quiet=True,
    )  # fmt: skip


def test_a_run_is_opened_by_its_path(run, tmp_path):
    again = isobatch.Run(str(run.path))
    assert again == run
    assert again.metrics == run.metrics
    nothing = isobatch.Run(tmp_path / "nothing")
    for read in ("recipe", "metrics", "evaluations", "profile"):
        with pytest.raises(UserError, match="nothing holds no run"):
            getattr(nothing, read)
    with pytest.raises(UserError, match="nothing holds no run"):
        nothing.plot()
    assert "nothing holds no run" in repr(nothing)


def test_what_it_says_of_itself(run):
    last = run.metrics[-1]
    for text in (repr(run), run._repr_html_()):
        assert "ppo on CartPole-v1" in text
        assert "4 x 32" in text
        assert f"{last['env_steps']:,} of 512 env steps" in text
        assert f"{last['episode_return']:.2f}" in text
    assert "<run>" in repr(run)
    assert "&lt;run&gt;" in run._repr_html_()
    assert "<run>" not in run._repr_html_()


def test_the_figure_has_the_numbers_of_the_files(run):
    drawn = run.plot()
    assert drawn.layout.title.text == "Evaluation return"
    means = drawn.data[-1]
    assert list(means.x) == [row["env_steps"] for row in run.evaluations]
    assert list(means.y) == [row["episode_return"] for row in run.evaluations]
    entropy = run.plot("entropy").data[0]
    assert list(entropy.x) == [row["env_steps"] for row in run.metrics]
    assert list(entropy.y) == [row["entropy"] for row in run.metrics]
    with pytest.raises(UserError, match=r"'entrpy'.*Did you mean entropy"):
        run.plot("entrpy")


def test_without_evaluations_the_return_is_that_of_training(run, tmp_path):
    plain = isobatch.Run(shutil.copytree(run.path, tmp_path / "plain"))
    (plain.path / "evaluations.jsonl").unlink()
    drawn = plain.plot().to_dict()
    assert drawn["layout"]["title"]["text"] == "Training return"
    assert drawn["data"][0]["y"][-1] == run.metrics[-1]["episode_return"]


def test_tables_of_pandas(run):
    pytest.importorskip("pandas")
    metrics, evaluations = run.to_pandas(), run.to_pandas("evaluations")
    assert metrics["env_steps"].tolist() == [row["env_steps"] for row in run.metrics]
    assert evaluations["episode_return"].tolist() == [
        row["episode_return"] for row in run.evaluations
    ]
    with pytest.raises(UserError, match="metrics or evaluations"):
        run.to_pandas("rows")


def test_without_pandas_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        run.to_pandas()


def test_the_package_lists_its_names():
    assert set(isobatch.__all__) <= set(dir(isobatch))
    for name in dir(isobatch):
        assert getattr(isobatch, name) is not None
