import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from busy import soon

import isobatch
from isobatch.cli import main
from isobatch.envs.catalog import MAKERS, resolve
from isobatch.run.store import CLOCK_COLUMNS, RunDirectory, read_metrics

COMMAND = Path(sys.executable).parent / "isobatch"
WITH_PROBES = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
TINY = [
    *["--n-envs", "2", "--n-steps", "8", "--n-minibatches", "2", "--n-epochs", "1"],
    *["--total-timesteps", "32", "--quiet"],
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run every command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capsys):
    """Return a function that runs a command here: words -> (exit code, output, complaints)."""

    def run(*words):
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def trained(command):
    code, *_ = command("train", "CartPole-v1", *TINY, "--out", "run")
    assert code == 0
    return Path("run")


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


def without_clock(path):
    rows = read_metrics(path)
    return [{key: row[key] for key in row if key not in CLOCK_COLUMNS} for row in rows]


def assert_refused(result, *fragments):
    """Check for exit code 2 and one line that says what is wrong."""
    code, _, complaint = result
    assert code == 2, complaint
    assert complaint.startswith("isobatch: ")
    assert complaint.count("\n") == 1
    assert complaint.endswith("\n")
    for fragment in fragments:
        assert fragment in complaint


BAD_REQUESTS = {
    "unknown environment": ("train CartPole-v2", ["'CartPole-v2'", "Did you mean", "CartPole-v1"]),
    "unknown gymnasium id": ("train gymnasium:Acrobat-v1", ["Acrobat-v1", "Acrobot-v1"]),
    "unknown module": ("train no_such_module:Env-v0", ["no_such_module"]),
    "unknown id of a module": ("train probe_registry:Countr-v0", ["Countr"]),
    "no environment": ("train", ["which environment"]),
    "unknown algorithm": ("train CartPole-v1 --algo ppo-emwa", ["'ppo-emwa'", "ppo-ewma"]),
    "no environments": ("train CartPole-v1 --n-envs 0", ["n_envs", "at least 1"]),
    "less than none": ("train CartPole-v1 --n-steps -3", ["n_steps", "at least 1"]),
    "more minibatches than rows": (
        "train CartPole-v1 --n-envs 2 --n-steps 4 --n-minibatches 9",
        ["n_minibatches 9", "transitions", "8 "],
    ),
    "minibatches that do not divide": (
        "train CartPole-v1 --n-envs 2 --n-steps 50 --minibatch-size 33",
        ["33", "100", "20 and 25"],
    ),
    "both ways to cut": (
        "train CartPole-v1 --n-minibatches 2 --minibatch-size 64",
        ["n_minibatches", "minibatch_size", "not both"],
    ),
    "budget below a rollout": (
        "train CartPole-v1 --n-envs 8 --n-steps 128 --total-timesteps 1000",
        ["total_timesteps 1000", "1024"],
    ),
    "batch size": (
        "train CartPole-v1 --batch-size 64",
        ["batch_size", "minibatch_size", "n_envs x n_steps", "CleanRL"],
    ),
    "batch size with =": ("train CartPole-v1 --batch-size=64", ["minibatch_size", "CleanRL"]),
    "not a whole number": ("train CartPole-v1 --n-envs many", ["--n-envs", "whole number", "many"]),
    "half an environment": ("train CartPole-v1 --n-envs 1.5", ["--n-envs", "whole number", "1.5"]),
    "not a number": ("train CartPole-v1 --learning-rate fast", ["--learning-rate", "fast"]),
    "nan for a number": ("train CartPole-v1 --learning-rate nan", ["learning_rate", "finite"]),
    "out of its range": ("train CartPole-v1 --gamma 1.5", ["gamma", "[0, 1]", "1.5"]),
    "not a choice": ("train CartPole-v1 --architecture twin", ["--architecture", "twin", "dual"]),
    "negative seed": ("train CartPole-v1 --seed -1", ["seed", "negative"]),
    "unknown flag": ("train CartPole-v1 --n-env 4", ["--n-env"]),
    "flag without its value": ("train CartPole-v1 --n-envs", ["--n-envs"]),
    "words too many": ("train CartPole-v1 Acrobot-v1", ["Acrobot-v1"]),
    "no such option": ("train CartPole-v1 --env-options wheels=3", ["wheels"]),
    "malformed option": ("train CartPole-v1 --env-options wheels", ["env_options", "name=value"]),
    "encoder without images": ("train CartPole-v1 --encoder impala", ["impala", "images"]),
    "continuous actions for pqn": (
        "train HalfCheetah-v4 --algo pqn",
        ["pqn", "one discrete action", "6 continuous"],
    ),
    "negative staleness": ("train CartPole-v1 --staleness -1", ["staleness", "negative", "-1"]),
    "unknown staleness loss": (
        "train CartPole-v1 --staleness-loss old",
        ["--staleness-loss", "old", "decoupled"],
    ),
    "stale a2c": ("train CartPole-v1 --algo a2c --staleness 2", ["staleness", "ppo", "a2c"]),
    "stale average": (
        "train CartPole-v1 --algo ppo-ewma --staleness 2 --staleness-loss behavior",
        ["staleness_loss", "decoupled", "ppo-ewma"],
    ),
    "no policy iterations": (
        "train CartPole-v1 --algo ppg --n-policy-iterations 0",
        ["n_policy_iterations", "at least 1"],
    ),
    "phase memory below a segment": (
        "train BigfishEasy-v0 --algo ppg --phase-memory 3MB",
        ["phase_memory 3MB", "one segment", "256 steps", "12,288"],
    ),
    "phase memory that is no size": (
        "train CartPole-v1 --algo ppg --phase-memory plenty",
        ["phase_memory", "4GB", "plenty"],
    ),
    "epochs for a2c": ("train CartPole-v1 --algo a2c --n-epochs 4", ["n_epochs", "1", "a2c"]),
    "unknown objective": ("train CartPole-v1 --objective best", ["objective", "clip", "best"]),
    "epsilon above one": ("train CartPole-v1 --algo pqn --epsilon-end 2", ["epsilon_end", "2"]),
    "nan reward": (
        "train probe_registry:NanReward-v0",
        ["probe_registry:NanReward-v0", "reward", "environment 0", "step 5"],
    ),
    "infinite reward": (
        "train probe_registry:InfReward-v0",
        ["probe_registry:InfReward-v0", "reward", "environment 0", "step 7"],
    ),
    "nan observation": (
        "train probe_registry:NanObservation-v0",
        ["probe_registry:NanObservation-v0", "observation", "environment 0", "step 6"],
    ),
    "nan observation and nan actions": (
        "train probe_registry:NanObservationSteered-v0",
        ["probe_registry:NanObservationSteered-v0", "observation", "environment 0", "step 6"],
    ),
    "unsupported observations": ("train probe_registry:TextObservation-v0", ["Text", "supported"]),
    "unsupported actions": ("train probe_registry:TupleAction-v0", ["Tuple", "supported"]),
    "missing recipe": ("train --recipe nowhere.toml", ["nowhere.toml"]),
    "recipe without its value": ("train --recipe", ["--recipe"]),
    "nothing to resume": ("resume nowhere", ["nowhere", "no run"]),
    "nothing to evaluate": ("eval nowhere", ["nowhere", "no policy"]),
    "no episodes": ("eval nowhere --episodes 0", ["--episodes", "at least 1"]),
    "unknown family": ("envs procgenn", ["procgenn", "procgen"]),
    "unknown command": ("trian CartPole-v1", ["trian", "train"]),
}


@pytest.mark.parametrize("request_", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_gets_one_line_and_writes_nothing(request_, command, elsewhere):
    words, fragments = request_
    assert_refused(command(*words.split()), *fragments)
    assert contents(elsewhere) == {}


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ('env = "CartPole-v1"\nseed = "three"\n', ["line 2", "seed", "whole number"]),
        ('env = "CartPole-v1"\n[batch]\nn_envs = 0\n', ["line 3", "n_envs", "at least 1"]),
        ('env = "CartPole-v1"\n[batch]\n\nn_env = 4\n', ["line 4", "'n_env'", "n_envs"]),
        ('env = "CartPole-v1"\n[batchs]\n', ["line 2", "batchs", "batch"]),
        ('env = "CartPole-v1"\nbatch = 64\n', ["line 2", "batch"]),
        ('env = "CartPole-v1"\n[objective]\ngamma = 1.5\n', ["line 3", "gamma"]),
        ('env = "CartPole-v1"\n[optimizer]\nlearning_rate = nan\n', ["line 3", "learning_rate"]),
        ('env = "CartPole-v1"\n[model]\nencoder = "vit"\n', ["line 3", "encoder", "impala"]),
        ('env = "CartPole-v1"\nseed = = 3\n', ["TOML", "line 2"]),
        ("seed = 3\n", ["env", "missing"]),
    ],
)
def test_a_malformed_recipe_is_refused_with_line_and_field(text, fragments, command, elsewhere):
    (elsewhere / "recipe.toml").write_text(text)
    before = contents(elsewhere)
    assert_refused(command("train", "--recipe", "recipe.toml"), "recipe.toml", *fragments)
    assert contents(elsewhere) == before


def test_a_recipe_that_is_no_text_is_refused(command, elsewhere):
    (elsewhere / "recipe.toml").write_bytes(b"\xff\xfe\x00")
    assert_refused(command("train", "--recipe", "recipe.toml"), "recipe.toml")
    assert_refused(command("train", "--recipe", elsewhere), str(elsewhere))


def test_an_output_directory_that_holds_a_run_is_refused_and_left_alone(command, trained):
    before = contents(trained)
    assert_refused(command("train", "Acrobot-v1", *TINY, "--out", trained), "run", "another run")
    assert contents(trained) == before


def test_an_output_directory_that_cannot_be_is_refused(command, elsewhere):
    (elsewhere / "notes").write_text("mine")
    before = contents(elsewhere)
    assert_refused(command("train", "CartPole-v1", *TINY, "--out", "notes"), "notes")
    assert_refused(command("train", "CartPole-v1", *TINY, "--out", "notes/run"), "notes/run")
    assert contents(elsewhere) == before


def test_a_run_in_use_cannot_be_resumed(command, trained):
    holder = RunDirectory.open(trained)
    before = contents(trained)
    assert_refused(command("resume", trained, "--total-timesteps", 64), "in use")
    assert contents(trained) == before
    holder.release()


def test_a_damaged_policy_is_refused(command, trained):
    file = trained / "policy.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert_refused(command("eval", trained), "policy.safetensors", "damaged")


def test_damaged_metrics_are_refused(command, trained):
    file = trained / "metrics.jsonl"
    file.write_text("{]\n" + file.read_text())
    assert_refused(
        command("resume", trained, "--total-timesteps", 64), "metrics.jsonl", "was changed"
    )


def test_a_budget_already_spent_is_refused(command, trained):
    assert_refused(command("resume", trained, "--total-timesteps", 20), "already has")


def test_a_module_that_only_a_file_names_is_not_imported(command, elsewhere):
    env = "probe_registry:Counter-v0"
    assert command("train", env, *TINY, "--out", "run")[0] == 0
    for words in (["resume", "run"], ["eval", "run"], ["train", "--recipe", "run/recipe.toml"]):
        assert_refused(command(*words), env, "--env")
    assert command("eval", "run", "--env", env, "--episodes", 2)[1].startswith(
        "return 6.00 +- 0.00"
    )
    assert command("resume", "run", "--env", env, "--total-timesteps", 64, "--quiet")[0] == 0
    again = ["train", "--recipe", "run/recipe.toml", "--env", env, "--quiet", "--out", "again"]
    assert command(*again)[0] == 0


def test_training_evaluating_and_resuming_end_to_end(command, elsewhere):
    code, output, complaints = command("train", "CartPole-v1", *TINY, "--seed", 3, "--out", "a/run")
    assert (code, complaints) == (0, "")
    assert output.count("\n") == 1, "--quiet leaves the last line alone"
    assert "CartPole-v1" in output
    assert "a/run" in output
    rows = read_metrics("a/run")
    assert 30 < rows[-1]["env_steps"] <= 32
    assert isobatch.Run(Path("a/run")).recipe.seed == 3

    code, output, complaints = command("eval", "a/run", "--episodes", 7, "--deterministic")
    assert (code, complaints) == (0, "")
    assert "over 7 episodes with deterministic actions" in output

    code, output, _ = command("resume", "a/run", "--total-timesteps", "6_4", "--quiet")
    assert code == 0
    assert output.count("\n") == 1
    assert 62 < read_metrics("a/run")[-1]["env_steps"] <= 64
    assert read_metrics("a/run")[: len(rows)] == rows
    assert {path.parts[0] for path in contents(elsewhere) if path.parts} == {"a"}


def test_a_saved_recipe_gives_the_same_run_again(command, trained):
    assert (
        command("train", "--recipe", trained / "recipe.toml", "--quiet", "--out", "again")[0] == 0
    )
    assert without_clock("again") == without_clock(trained)
    assert (trained / "recipe.toml").read_text() == Path("again/recipe.toml").read_text()


def test_flags_override_a_recipe(command, trained):
    code, *_ = command(
        *["train", "--recipe", trained / "recipe.toml", "--seed", 9, "--algo", "ppo-ewma"],
        *["--minibatch-size", 4, "--quiet", "--out", "again"],
    )
    recipe = isobatch.Recipe.load("again/recipe.toml")
    assert code == 0
    assert (recipe.seed, recipe.algo, recipe.batch.n_minibatches) == (9, "ppo-ewma", 4)
    assert recipe.batch.n_envs == 2


def test_without_out_a_run_goes_under_runs(command, elsewhere):
    code, output, _ = command("train", "CartPole-v1", *TINY)
    (run,) = (elsewhere / "runs").iterdir()
    assert code == 0
    assert f"runs/{run.name}" in output


def test_plain_output_says_what_runs_and_how_it_goes(command):
    words = [word for word in TINY if word != "--quiet"]
    code, output, complaints = command("train", "CartPole-v1", *words, "--out", "run")
    assert (code, complaints) == (0, "")
    lines = output.splitlines()
    assert "2 envs x 8 steps" in lines[0]
    assert "steps/s" in lines[1]
    assert "saved to run" in lines[-1]


def test_a_terminal_shows_progress_and_readings(command, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = [word for word in TINY if word != "--quiet"]
    code, output, complaints = command("train", "CartPole-v1", *words, "--out", "run")
    assert (code, complaints) == (0, "")
    assert all(reading in output for reading in ("of 32", "steps/s", "KL", "clip", "saved to run"))


def test_numbers_may_be_written_as_people_write_them(command):
    words = ["train", "CartPole-v1", *TINY, "--total-timesteps", "1e2", "--out", "run"]
    assert command(*words)[0] == 0
    assert isobatch.Recipe.load("run/recipe.toml").total_timesteps == 100


def test_the_families_are_listed_with_their_presets(command):
    code, output, _ = command("envs")
    assert code == 0
    families = {line.split()[0] for line in output.splitlines()[1:-1]}
    assert {"classic", "atari", "procgen-easy", "procgen-hard", "mujoco", "minigrid"} <= families


def test_the_ids_of_a_family_are_listed(command):
    code, output, _ = command("envs", "procgen")
    assert code == 0
    ids = {line.split()[0] for line in output.splitlines()}
    assert {"CoinrunHard-v0", "CoinrunEasy-v0", "StarpilotHard-v0"} <= ids
    assert "CartPole-v1" not in ids


def test_help_explains_each_flag_with_the_presets_default(command):
    code, output, _ = command("train", "HalfCheetah-v4", "--help")
    text = " ".join(output.split())
    assert code == 0
    assert "--n-steps N Steps per environment in one rollout, T. (default: 2048)" in text
    assert "--minibatch-size" in text
    assert "--device {auto,cpu,cuda}" in text


def test_no_command_at_all_shows_the_usage(command):
    code, output, _ = command()
    assert code == 0
    assert output.startswith("usage: isobatch")


def test_help_answers_at_once_without_the_heavy_modules():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert all(word in shown.stdout for word in ("train", "resume", "eval", "envs"))
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
    script = "import sys; from isobatch.cli import main; main(['--help']); print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not {"torch", "envpool", "gymnasium", "numpy"} & set(shown.stdout.split())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pong-v5", "gymnasium:LunarLander-v3"])
def test_an_environments_help_answers_at_once_without_the_heavy_modules(env):
    script = (
        "import atexit, sys; from isobatch.cli import main; "
        "atexit.register(lambda: print(*sys.modules)); main(['train', sys.argv[1], '--help'])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.run(
        [sys.executable, "-c", script, env], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert not {"torch", "envpool", "gymnasium", "numpy"} & set(
        shown.stdout.split("\n")[-2].split()
    )
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5
    text = " ".join(shown.stdout.split())
    assert f"(default: {isobatch.preset(env).batch.n_steps})" in text


def test_training_starts_without_modules_it_does_not_use(tmp_path):
    """Each of these takes between half a second and several to import."""
    script = (
        "import sys; from isobatch.cli import main; "
        "main(['train', 'CartPole-v1', '--total-timesteps', '64', '--n-envs', '4', '--n-steps', "
        "'8', '--out', sys.argv[1]]); print(*sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run"], capture_output=True, text=True, check=True
    )
    loaded = set(shown.stdout.split("\n")[-2].split())
    assert {"torch", "envpool"} <= loaded
    avoidable = {
        "scipy", "matplotlib", "torch._inductor", "torch._dynamo", "duckdb", "plotly", "jinja2",
        "pandas", "ray", "envpool.jumanji",
    }  # fmt: skip
    assert not avoidable & loaded


def test_a_family_whose_package_is_left_out_at_first_can_be_made():
    script = (
        "import sys; from isobatch.envs.pool import PoolEnv, ids; "
        "assert ids()['Knapsack-v1'] == 'jumanji'; assert 'envpool.jumanji' not in sys.modules; "
        "env = PoolEnv('Knapsack-v1', [1, 2]); print(env.reset()['vector'].shape[0]); "
        "print(sys.modules['envpool.jumanji'].__file__)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    rows, file = shown.stdout.split()
    assert rows == "2"
    assert file.endswith("__init__.py")


def test_the_families_that_help_knows_are_those_there_are():
    listed = (Path(isobatch.__file__).parent / "families.txt").read_text().splitlines()
    known = {env: family for family, *ids in map(str.split, listed) for env in ids}
    assert known == {env: resolve(env).family for env in known}
    # Other tests register environments with Gymnasium, which help finds the long way.
    assert set(MAKERS["envpool"].ids()) <= set(known)
    assert sum(env.startswith("gymnasium:") for env in known) > 50


def test_a_process_too_complains_in_one_line(elsewhere):
    # Only a process shows what Gymnasium itself has to say about such a reward.
    words = [COMMAND, "train", "probe_registry:NanReward-v0", *TINY]
    ended = subprocess.run(words, capture_output=True, text=True, env=WITH_PROBES, check=False)
    assert_refused((ended.returncode, ended.stdout, ended.stderr), "reward", "step 5")
    assert contents(elsewhere) == {}


def test_ctrl_c_ends_a_run_that_resumes(command):
    words = [COMMAND, "train", "CartPole-v1", "--out", "run", "--total-timesteps", "20000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + soon(60)
        metrics = Path("run/metrics.jsonl")
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, complaints = process.communicate(timeout=soon(30))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, complaints
    assert "isobatch resume run" in output.splitlines()[-1]
    assert complaints.count("\n") <= 1
    rows = read_metrics("run")
    assert rows[-1]["env_steps"] < 19_000
    assert command("resume", "run", "--quiet")[0] == 0
    assert read_metrics("run")[: len(rows)] == rows
    assert 19_992 < read_metrics("run")[-1]["env_steps"] <= 20_000
