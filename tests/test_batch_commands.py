import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from isobatch.cli import main
from isobatch.pages import diagram
from isobatch.presets import preset
from isobatch.recipe import Recipe
from isobatch.run.store import RunDirectory

TUNED = preset("CoinrunHard-v0", "ppg-ewma")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run every command in a directory with a tuned recipe and a run of it."""
    monkeypatch.chdir(tmp_path)
    Path("tuned.toml").write_text(TUNED.to_toml())
    directory = RunDirectory.create(Path("run"), TUNED)
    directory.append({"iterations": 1, "env_steps": 1, "noise_scale": 1000.0})
    directory.release()
    return tmp_path


@pytest.fixture
def command(capsys):
    def run(words):
        capsys.readouterr()
        return main(words.split()), *capsys.readouterr()

    return run


def unwrapped(said):
    """Return what was said without the breaks of its lines."""
    return " ".join(said.split())


@pytest.mark.parametrize("source", ["tuned.toml", "run"])
def test_a_recipe_or_a_run_is_rescaled_with_reasons(source, command):
    code, said, _ = command(f"rescale {source} --n-envs 16 --verbose")
    assert code == 0
    table = [line.split() for line in said.splitlines() if line[:2] == "  "]
    rows = {name: values for name, *values in table if len(values) == 2}
    assert rows["n_envs"] == ["256", "16"]
    assert rows["minibatch_size"] == ["8192", "512"]
    assert rows["learning_rate"] == ["0.0005", "0.000125"]
    assert rows["proximal_decay"] == ["0.88889", "0.99225"]
    assert rows["advantage_decay"] == ["0", "0.88235"]
    assert rows["n_policy_iterations"] == ["32", "512"]
    assert "minibatch /16 (c_opt 16), rollout /16 (c_iter 16)" in said
    assert "learning_rate 0.0005 -> 0.000125: / sqrt(c_opt); the noise of adam's step" in said
    assert "c_opt" not in command(f"rescale {source} --n-envs 16")[1]


def test_the_runs_measured_noise_scale_is_heeded(command):
    _, said, _ = command("rescale run --n-envs 64")
    assert "minibatches of 2,048 rows are above the measured noise scale of 1,000" in unwrapped(
        said
    )
    _, said, _ = command("rescale tuned.toml --n-envs 64 --noise-scale 3000")
    assert "near the measured noise scale of 3,000" in said
    _, said, _ = command("rescale tuned.toml --n-envs 64")
    assert "measured noise scale" not in said


def test_a_rescaled_recipe_is_written_whole(command):
    code, said, _ = command(
        "rescale tuned.toml --n-envs 64 --n-steps 64 --minibatch-size 512 --write small.toml"
    )
    assert code == 0
    assert "saved to small.toml; train with:\nisobatch train --recipe small.toml\n" in said
    expected = TUNED.rescale(n_envs=64, n_steps=64, minibatch_size=512).recipe
    assert Recipe.load("small.toml") == expected


def test_an_environments_preset_is_rescaled(command):
    code, said, _ = command("rescale CoinrunHard-v0 --algo ppg-ewma --n-envs 64 --write small.toml")
    assert code == 0
    assert "Change n_envs from 256 to 64, learning_rate from 0.0005 to 0.00025" in said
    assert Recipe.load("small.toml") == TUNED.rescale(n_envs=64).recipe
    assert command("rescale CoinrunHard-v0 --n-envs 64 --write ppo.toml")[0] == 0
    assert Recipe.load("ppo.toml").algo == "ppo"


def test_betas_and_the_gradients_bound_move_when_asked(command):
    recipe = TUNED.replace(max_grad_norm=0.5)
    Path("bound.toml").write_text(recipe.to_toml())
    _, said, _ = command("rescale bound.toml --n-envs 64 --betas --grad-norm --write b.toml")
    assert "adam_beta1" in said
    moved = Recipe.load("b.toml").optimizer
    assert moved.max_grad_norm == 1.0
    assert moved.adam_beta2 == pytest.approx(0.999**0.25)


def test_settings_of_other_libraries_are_rescaled_without_leaving_them(command):
    words = "n_envs=8 n_steps=2048 batch_size=64 n_epochs=10 learning_rate=3e-4"
    code, said, _ = command(f"rescale --from sb3 {words} --n-envs 64 --keep minibatches --to sb3")
    assert code == 0
    assert "0.00084853" in said
    assert "batch_size=512" in said
    Path("args.json").write_text(json.dumps({"num_envs": 8, "num_steps": 128}))
    code, said, _ = command("rescale --from cleanrl args.json --n-envs 128 --to cleanrl")
    assert code == 0
    assert "--num-envs 128" in said
    assert "--learning-rate 0.001" in said
    flags = "--num-envs 8 --num-steps 128 --no-anneal-lr --n-envs 128"
    code, said, complaint = command(f"rescale --from cleanrl {flags} --to cleanrl")
    assert code == 0, complaint
    assert "--num-envs 128" in said
    assert "--no-anneal-lr" in said


BAD = {
    "no batch": ("rescale tuned.toml", ["to which batch"]),
    "no recipe": ("rescale --n-envs 4", ["which recipe"]),
    "no such file": ("rescale nowhere.toml --n-envs 4", ["nowhere.toml"]),
    "does not partition": (
        "rescale tuned.toml --n-envs 3 --n-steps 5 --write x.toml",
        ["3 x 5 = 15 rows do not divide into 8"],
    ),
    "minibatch that does not divide": (
        "rescale tuned.toml --minibatch-size 100 --write x.toml",
        ["100", "65536"],
    ),
    "no such environment": ("rescale CoinrunHardy-v0 --n-envs 4", ["CoinrunHard-v0"]),
    "algorithm of a recipe": ("rescale tuned.toml --algo ppo --n-envs 4", ["--algo"]),
    "unknown format": ("rescale --from sb4 n_envs=8 --n-envs 4", ["sb4", "sb3"]),
    "typo": ("rescale --from sb3 learning_rat=3 --n-envs 4", ["learning_rat", "learning_rate"]),
    "unknown target": ("rescale tuned.toml --n-envs 4 --to sb4 --write x.toml", ["sb4", "sb3"]),
    "unknown flag": ("rescale tuned.toml --n-envs 4 --fast", ["--fast"]),
    "out of order": (
        "train CartPole-v1 --batch-schedule 100k:8x128,50k:16x128",
        ["out of order", "50,000"],
    ),
    "nothing to show": ("show nowhere", ["nowhere"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_one_line_and_nothing_is_written(case, command, elsewhere):
    before = sorted(elsewhere.rglob("*"))
    words, fragments = BAD[case]
    code, _, complaint = command(words)
    assert code == 2
    assert complaint.startswith("isobatch: ")
    assert complaint.count("\n") == 1
    for fragment in fragments:
        assert fragment in complaint
    assert sorted(elsewhere.rglob("*")) == before


def test_the_batch_is_drawn_in_text_and_as_an_image(command):
    code, said, _ = command("show run --svg batch.svg")
    assert code == 0
    for words in (
        "rollout: 256 environments x 256 steps = 65,536 transitions",
        "minibatches: 8 of 8,192 transitions",
        "updates: 8 x 1 epoch = 8 gradient steps per iteration",
        "auxiliary phase: 32 rollouts = 2,097,152 transitions, 6 epochs",
        "minibatches of 16 x 256 transitions",
    ):
        assert words in said
    image = ElementTree.parse("batch.svg").getroot()
    text = " ".join("".join(each.itertext()) for each in image.iter() if "text" in each.tag)
    assert "256 environments x 256 steps = 65,536 transitions" in text
    _, said, _ = command("show CartPole-v1")
    assert "8 environments x 128 steps = 1,024 transitions" in said
    assert "auxiliary" not in said


@pytest.mark.parametrize(("minibatches", "epochs"), [(4, 10), (1, 1), (128, 32)])
def test_every_gradient_step_of_an_iteration_is_drawn_epoch_by_epoch(minibatches, epochs):
    recipe = preset("CartPole-v1", n_minibatches=minibatches, n_epochs=epochs)
    for width in (720, 360):
        image = ElementTree.fromstring(diagram.svg(recipe, width))
        lines = [each.get("d", "") for each in image.iter() if each.get("class") == "batch-part"]
        drawn = [line.count("M") for line in lines if line]
        assert drawn == [minibatches] * epochs
        assert f"epoch {epochs}" in "".join(image.itertext())
    marks = [line for line in diagram.text(recipe).splitlines() if line.startswith("  epoch")]
    assert len(marks) == min(epochs, diagram.MOST_LINES)


def test_steps_that_are_not_drawn_one_by_one_are_said():
    recipe = Recipe(env="CartPole-v1").replace(
        n_envs=64, n_steps=256, n_minibatches=8192, n_epochs=100
    )
    image = diagram.svg(recipe)
    words = " ".join(ElementTree.fromstring(image).itertext())
    assert "64 of 100 epochs are drawn" in words
    assert "a bar is an epoch of 8,192 gradient steps" in words
    assert len(image) < 50_000
    assert "prefers-color-scheme: dark" in image
    assert "... 100 epochs" in diagram.text(recipe)
    assert max(map(len, diagram.text(recipe).splitlines())) <= diagram.COLUMNS
    assert "|" * diagram.MOST_MARKS + " ... 8,192" in diagram.text(recipe)


def test_names_are_escaped_in_the_image():
    image = diagram.svg(Recipe(env="<script>&"))
    assert "<script>" not in image
    assert ElementTree.fromstring(image) is not None


def test_the_ways_to_as_many_environments_are_side_by_side(command):
    Path("ppo.toml").write_text(preset("CartPole-v1", n_epochs=4, learning_rate=1e-3).to_toml())
    _, said, _ = command("rescale ppo.toml --n-envs 64 --keep minibatches")
    assert "97 iterations, 1,552 gradient steps -> 12 iterations, 192 gradient" in unwrapped(said)
    assert "! the budget holds only 12 iterations, where there were 97" in said
    table = {line[2:].split("  ")[0]: line for line in said.splitlines() if "x" in line[:25]}
    assert unwrapped(table["rollout"]) == "* rollout 64x16 in 4 of 256 0.001 97 1,552"
    assert unwrapped(table["minibatch-size"]).startswith("minibatch-size 64x128 in 32 of 256 0.001")
    assert unwrapped(table["minibatches"]).endswith("64x128 in 4 of 2048 0.0028284 12 192")
    _, said, _ = command("rescale ppo.toml --n-envs 64 --keep rollout --write kept.toml --verbose")
    assert "gae_lambda 1 would give" in unwrapped(said)
    assert Recipe.load("kept.toml").batch.n_steps == 16
    _, said, _ = command("rescale ppo.toml --n-envs 24")
    assert "because a rollout of 1,024 transitions does not divide by n_envs 24" in unwrapped(said)
    assert "Not possible here: keep rollout: 1,024 rows do not divide" in unwrapped(said)


def test_the_way_taken_without_being_told_is_that_of_the_evidence(command):
    Path("ppo.toml").write_text(preset("CartPole-v1").to_toml())
    _, said, _ = command("rescale ppo.toml --n-envs 64 --write up.toml")
    assert "n_steps 16 still covers GAE's horizon of 8.47 steps" in unwrapped(said)
    assert Recipe.load("up.toml") == preset("CartPole-v1", n_envs=64, n_steps=16)
    _, said, _ = command("rescale ppo.toml --n-envs 256 --write far.toml")
    assert "n_steps 4, which does not cover GAE's horizon of 8.47 steps" in unwrapped(said)
    assert Recipe.load("far.toml").batch.n_steps == 128
    _, said, _ = command("rescale ppo.toml --n-envs 2 --write down.toml")
    assert "Recommended because fewer environments leave more updates" in unwrapped(said)
    assert Recipe.load("down.toml") == preset("CartPole-v1").rescale(n_envs=2).recipe
    for more in ("--n-envs 64 --n-steps 128", "--n-envs 64 --minibatch-size 256"):
        _, said, _ = command(f"rescale ppo.toml {more} --write other.toml")
        assert "Recommended" not in said
        assert Recipe.load("other.toml").batch.n_steps == 128


def test_an_epsilon_beside_which_the_moments_are_small_is_said(command):
    from isobatch import train

    for name, epsilon in (("small", 1e-8), ("large", 1.0)):
        train("CartPole-v1", total_timesteps=1024, out=name, adam_eps=epsilon, quiet=True)
    assert "adam_eps" not in command("rescale small --n-envs 2")[1]
    _, said, _ = command("rescale large --n-envs 2")
    assert "! adam_eps 1 is over a tenth of sqrt(v) for" in said
    assert "--betas moves it to 2 (x sqrt(c_opt))" in unwrapped(said)
    assert "is over a tenth" not in command("rescale large --n-envs 2 --betas")[1]
