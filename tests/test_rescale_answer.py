"""The answer of rescale: "SB3 PPO, 8 environments on LunarLander; I want 64. What do I change?"."""

import ast
import shlex
from pathlib import Path

import pytest

import isobatch
from isobatch import UserError, exchange
from isobatch.cli import main
from isobatch.presets import family_preset
from isobatch.recipe import Recipe
from isobatch.scaling import Keep, record, rescale
from isobatch.text import WIDTH

SB3 = "--from sb3 n_envs=8 total_timesteps=1e6 --env LunarLander-v3"
PPO = family_preset("classic", "CartPole-v1")
"""8 x 128 in 4 minibatches, gamma 0.98, lambda 0.9: a horizon of 8.47 steps."""


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Return a function from the words of `isobatch rescale` to what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(words):
        capsys.readouterr()
        assert main(["rescale", *words.split()]) == 0
        return capsys.readouterr().out

    return run


def unwrapped(said):
    return " ".join(said.split())


def settings(said):
    """Return the table's rows: what moves, and what stays."""
    moves, stays = said.split("What moves")[1].split("\n\n")[0].split("What stays")
    rows = [
        {line[2:].rsplit(maxsplit=2)[0]: tuple(line.split()[-2:]) for line in part.splitlines()[1:]}
        for part in (moves, stays)
    ]
    return rows[0], rows[1]


def words(said, start):
    """Return the words of the shell command that is to be pasted, the last thing said."""
    return shlex.split(said[said.index(start) :].replace("\\\n", " "))


def call(said):
    """Return the keyword arguments of each call in the Python that is to be pasted."""
    code = said[said.index("from stable_baselines3") :]
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return {
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr: {
            each.arg: ast.literal_eval(each.value) for each in node.keywords
        }
        for node in calls
        if isinstance(node.func, ast.Name | ast.Attribute)
    }


def test_the_question_is_answered_first_and_in_numbers(ask):
    """SB3's defaults: 8 x 2048 = 16,384 rows, 256 minibatches of 64, 10 epochs.

    1,000,000 // 16,384 = 61 iterations of 2,560 gradient steps. Horizon 1 / (1 - 0.99 x 0.95).
    """
    said = ask(f"{SB3} --n-envs 64")
    first = unwrapped(said[: said.index("\n\n")])
    assert first.startswith("Change n_envs from 8 to 64 and n_steps from 2048 to 256; keep all")
    assert "n_steps 256 still covers GAE's horizon of 16.8 steps" in first
    moves, stays = settings(said)
    assert moves == {"n_envs": ("8", "64"), "n_steps": ("2048", "256")}
    assert stays["batch_size"] == ("64", "64")
    assert stays["n_epochs"] == ("10", "10")
    assert stays["learning_rate"] == ("0.0003", "0.0003")
    assert stays["minibatches per epoch"] == ("256", "256")
    budget = "In a budget of 1,000,000 steps: 61 iterations, 156,160 gradient steps, before and"
    assert budget in unwrapped(said)
    rows = [unwrapped(line) for line in said.splitlines()]
    assert "* rollout 64x256 in 256 of 64 0.0003 61 156,160" in rows
    assert "minibatch-size 64x2048 in 2048 of 64 0.0003 7 143,360" in rows
    assert "minibatches 64x2048 in 256 of 512 0.00084853 7 17,920" in rows


def test_the_record_says_what_to_expect_and_on_which_side_the_recipe_is(ask):
    said = unwrapped(ask(f"{SB3} --n-envs 64"))
    assert "lost 0.13 of normalised area under the learning curve" in said
    assert "over 8 tasks (ppo, 10 seeds each; docs/results/scale-up.md)" in said
    # 256 / 16.807; the seven tasks that cover it: 0.015 + 0.147 + 0.043, and 4 x 0.072, over 7.
    assert "Here n_steps 256 covers GAE's horizon (15.2 times 16.8): in these cases it lost" in said
    assert "it lost 0.07 of normalised area" in said
    assert "On LunarLander-v3 itself: final score -0.24, area -0.15" in said
    far = unwrapped(ask(f"{SB3} --n-envs 2048 --keep rollout"))
    assert "Here n_steps 8 does not cover GAE's horizon (0.476 times 16.8)" in far
    assert "in these cases it lost 0.53 of normalised area" in far
    assert "256 times the environments was not measured" in far


def test_few_iterations_are_warned_of(ask):
    said = unwrapped(ask(f"{SB3} --n-envs 64 --keep minibatches"))
    assert "61 iterations, 156,160 gradient steps -> 7 iterations, 17,920 gradient steps" in said
    assert "! the budget holds only 7 iterations, where there were 61" in said
    assert "Recommended instead: --keep rollout, because" in said
    said = unwrapped(ask(f"{SB3} --n-envs 256 --keep minibatches"))
    assert "-> 1 iteration, 2,560 gradient steps." in said


@pytest.mark.parametrize(
    ("keep", "n_steps", "batch_size", "learning_rate"),
    [("rollout", 256, 64, 3e-4), ("minibatches", 2048, 512, 3e-4 * 8**0.5)],
)
def test_the_settings_to_paste_are_python_with_the_right_numbers(
    keep, n_steps, batch_size, learning_rate, ask
):
    said = ask(f"{SB3} --n-envs 64 --keep {keep}")
    assert 'make_vec_env("LunarLander-v3", n_envs=64)' in said
    made = call(said)
    assert made["make_vec_env"] == {"n_envs": 64}
    assert made["learn"] == {"total_timesteps": 1_000_000}
    assert made["PPO"] == {
        "n_steps": n_steps,
        "batch_size": batch_size,
        "n_epochs": 10,
        "learning_rate": pytest.approx(learning_rate),
    }


def test_the_budget_is_said_where_it_is_assumed(ask):
    said = unwrapped(ask("--from sb3 n_envs=8 --env Acrobot-v1 --n-envs 64"))
    assert "100,000 steps (assumed, Acrobot-v1's preset; total_timesteps=N says another)" in said
    assert "total_timesteps=100000" in said
    said = unwrapped(ask("--from sb3 n_envs=8 --n-envs 64"))
    assert "1,000,000 steps (assumed; total_timesteps=N says another)" in said
    assert "make_vec_env(make_env, n_envs=64)" in said
    assert "assumed" not in ask(f"{SB3} --n-envs 64")
    assert "assumed" not in ask("--from cleanrl --num-envs 8 --n-envs 16")


def test_other_libraries_are_answered_in_their_names(ask):
    said = ask("--from cleanrl --num-envs 8 --n-envs 32 --keep minibatches")
    assert "Change num_envs from 8 to 32 and learning_rate from 0.00025 to 0.0005" in unwrapped(
        said
    )
    moves, stays = settings(said)
    assert moves.keys() == {
        "num_envs", "learning_rate", "minibatch size", "rollout (transitions)"
    }  # fmt: skip
    assert stays.keys() == {"num_steps", "num_minibatches", "update_epochs"}
    assert "! update_epochs 4: the rules hold for one epoch" in said
    assert "n_envs" not in said.replace("n_envs x 8", "")
    command = words(said, "python cleanrl")
    assert command[command.index("--num-envs") + 1] == "32"
    assert command[command.index("--learning-rate") + 1] == "0.0005"
    given = "num_envs=8 num_steps_per_env=64 num_mini_batches=4 num_learning_epochs=5 gamma=0.99"
    rest = "entropy_coef=0 schedule=fixed max_iterations=100"
    moves, _ = settings(ask(f"--from rsl_rl {given} {rest} --n-envs 4"))
    assert moves["num_envs"] == ("8", "4")
    assert moves["max_iterations"] == ("100", "200")
    moves, _ = settings(ask("--from ppo-ewma workers=4 --n-envs 64"))
    assert moves["num_envs"] == ("64", "16")
    assert moves["lr"] == ("0.0005", "0.00025")


QUESTIONS = [
    f"{SB3} --n-envs 64",
    f"{SB3} --n-envs 64 --keep minibatches --grad-norm",
    f"{SB3} --n-envs 2",
    f"{SB3} --n-envs 64 --to cleanrl",
    "--from cleanrl --num-envs 4 --n-envs 64",
    "--from zoo n_envs=8 n_steps=1024 --n-envs 3000 --n-steps 2048 --minibatch-size 1024",
    "--from ppo-ewma workers=4 --n-envs 16 --betas",
    "CartPole-v1 --n-envs 64",
    "CartPole-v1 --algo ppo-ewma --n-envs 2",
    "HalfCheetah-v4 --n-envs 16 --write recipe.toml",
    "CoinrunHard-v0 --algo ppg-ewma --n-envs 1000",
    "CartPole-v1 --n-steps 64",
]


@pytest.mark.parametrize("words", QUESTIONS)
@pytest.mark.parametrize("verbose", ["", " --verbose"])
def test_every_line_fits_the_terminal(words, verbose, ask):
    said = ask(words + verbose)
    assert max(map(len, said.splitlines())) <= WIDTH
    assert not any(line != line.rstrip() for line in said.splitlines())


def test_rules_and_details_are_for_those_who_ask(ask):
    words = f"{SB3} --n-envs 64 --keep minibatches"
    short, whole = ask(words), unwrapped(ask(f"{words} --verbose"))
    assert "sqrt(c_opt)" not in short
    assert "minibatch x8 (c_opt 0.125), rollout x8 (c_iter 0.125)" in whole
    assert "learning_rate 0.0003 -> 0.00084853: / sqrt(c_opt); the noise of adam's step" in whole
    hidden = [line for line in short.splitlines() if line.endswith("more notes with --verbose.")]
    (count,) = (int(line.split()[0]) for line in hidden)
    assert whole.count("! ") == short.count("\n! ") + count
    assert "with --verbose" not in whole


def test_no_warning_is_lost_and_what_matters_comes_first(ask):
    recipe = PPO.replace(target_kl=0.02, staleness=2, advantage_normalization="minibatch")
    rescaled = rescale(recipe, n_envs=64, noise_scale=100.0)
    whole = unwrapped(rescaled.text(verbose=True))
    assert len(rescaled.warnings) == 8
    places = [whole.index(f"! {warning}") for warning in rescaled.warnings]
    assert places == sorted(places)
    for first, second in (("12 iterations", "noise scale"), ("noise scale", "n_epochs 10"),
                          ("target_kl", "max_grad_norm")):  # fmt: skip
        order = [next(k for k, w in enumerate(rescaled.warnings) if each in w)
                 for each in (first, second)]  # fmt: skip
        assert order == sorted(order)
    short = unwrapped(str(rescaled))
    assert "target_kl 0.02" in short
    assert "max_grad_norm 0.5" not in short


def test_the_object_prints_as_the_command(ask):
    given = {"n_envs": 8, "total_timesteps": 1_000_000}
    asked = isobatch.rescale(given, library="sb3", env="LunarLander-v3", n_envs=64)
    assert f"{asked}\n" == ask(f"{SB3} --n-envs 64")
    assert f"{isobatch.rescale('CartPole-v1', n_envs=2)}\n" == ask("CartPole-v1 --n-envs 2")
    Path("tuned.toml").write_text(PPO.to_toml())
    asked = isobatch.rescale("tuned.toml", n_envs=64, keep="minibatches")
    assert f"{asked}\n" == ask("tuned.toml --n-envs 64 --keep minibatches")
    assert f"{asked.text(verbose=True)}\n" == ask(
        "tuned.toml --n-envs 64 --keep minibatches --verbose"
    )


def test_the_object_holds_what_it_says():
    rescaled = isobatch.rescale(PPO, n_envs=64)
    assert rescaled.recipe == PPO.replace(n_envs=64, n_steps=16)
    assert [change.field for change in rescaled.changes] == ["n_envs", "n_steps"]
    assert [way.keep for way in rescaled.ways if way.recommended] == ["rollout"]
    batches = [way.recipe.batch for way in rescaled.ways if way.recipe]
    assert [batch.minibatch_size for batch in batches] == [256, 256, 2048]
    # 100,000 steps are 97 rollouts of 1,024 rows and 12 of 8,192; 10 epochs.
    assert [way.updates for way in rescaled.ways] == [(97, 3880), (12, 3840), (12, 480)]
    assert len(repr(rescaled)) < 100
    assert "8x128 in 4 -> 64x16 in 4" in repr(rescaled)
    page = rescaled._repr_html_()
    assert "<tr><td>n_steps</td><td>128</td><td>16</td></tr>" in page
    assert page.count("<table>") == page.count("</table>") == 2
    assert "recipe.replace(n_envs=64, n_steps=16)" in page


def test_markup_in_a_recipe_is_escaped_in_a_notebook():
    given = {"n_envs": 8, "env": "<script>"}
    page = isobatch.rescale(given, library="sb3", n_envs=64)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_run_is_rescaled_from_python(tmp_path):
    run = isobatch.train("CartPole-v1", total_timesteps=1024, out=tmp_path / "run", quiet=True)
    rescaled = isobatch.rescale(run, n_envs=2)
    assert rescaled.recipe == run.recipe.rescale(n_envs=2).recipe
    assert str(rescaled) == str(isobatch.rescale(tmp_path / "run", n_envs=2))


def test_the_command_to_train_gives_the_rescaled_recipe(ask):
    Path("tuned.toml").write_text(PPO.replace(max_grad_norm=None, seed=7).to_toml())
    small = ["--total-timesteps", "256", "--quiet", "--out"]
    for name, source in (("preset", "CartPole-v1 --algo ppo-ewma"), ("file", "tuned.toml")):
        saved = words(ask(f"{source} --n-envs 2 --betas --write saved.toml"), "isobatch train")
        direct = words(ask(f"{source} --n-envs 2 --betas"), "isobatch train")
        assert saved[1:] == ["train", "--recipe", "saved.toml"]
        expected = Recipe.load("saved.toml").replace(total_timesteps=256)
        assert main([*direct[1:], *small, name]) == 0
        assert Recipe.load(f"{name}/recipe.toml") == expected


def test_what_differs_here_is_said_to_who_trains_here(ask):
    words = "--from cleanrl --num-envs 8 --target-kl 0.015 --n-envs 4"
    assert "differs in Isobatch" not in ask(words)
    assert "! differs in Isobatch: target_kl: checked" in ask(f"{words} --verbose")
    assert "! differs in Isobatch: target_kl: checked" in ask(f"{words} --write here.toml")
    assert "! differs in Isobatch: target_kl: checked" in ask(f"{words} --to sb3")


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ({"n_envs": 8}, {"n_envs": 4}, "whose settings"),
        ("x.toml", {"library": "sb3", "n_envs": 4}, "must be a dictionary"),
        (PPO, {}, "to which batch"),
        (PPO, {"n_envs": 4, "keep": "rollouts"}, "Did you mean rollout"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(source, options, words):
    with pytest.raises(UserError, match=words):
        isobatch.rescale(source, **options)


def test_the_record_is_that_of_the_results():
    """Means over tasks as docs/results/scale-up.md has them, to the rounding of its tables."""
    means: list[tuple[Keep, float, float]] = [
        # Four tasks of the choice, and the four it was tried on.
        ("rollout", 8, (-0.184 - 0.072) / 2),
        ("minibatches", 8, (-0.337 - 0.085 - 0.300) / 2),
        ("minibatch-size", 8, 0.315 - 0.638),
        ("minibatches", 1 / 4, 0.019),
        ("rollout", 1 / 4, -0.026),
    ]
    for way, factor, area in means:
        rows = record.measured(way, factor, "ppo")
        assert record.mean_area(rows) == pytest.approx(area, abs=0.002)
    averaged = record.measured("minibatches", 8, "ppo-ewma")
    assert record.mean_area(averaged) == pytest.approx(0.329 - 0.627, abs=0.002)
    for factor, final in ((1 / 4, 0.002), (1 / 16, -0.009), (1 / 64, 0.002)):
        rows = record.measured("minibatches", factor, "ppo-ewma")
        assert record.mean_area(rows) is None
        assert record.mean_final(rows) == pytest.approx(final, abs=0.001)


def test_completing_settings_changes_nothing():
    for name, given in (
        ("sb3", {"n_envs": 8}), ("zoo", {"CartPole-v1": {"n_envs": 8, "n_steps": 64}}),
        ("cleanrl", {"num_envs": 8}), ("ppo-ewma", {"workers": 4}),
    ):  # fmt: skip
        recipe = exchange.read(name, given).recipe
        completed = exchange.complete(name, given, recipe)
        assert exchange.read(name, completed).recipe == recipe
        assert completed.items() >= given.items()
        assert len(completed) > len(given)
