"""The pages on extending, done as they stand: their files, then their commands, in an empty folder.

Commands run outside pytest, in processes of their own.
"""

import csv
import re
import shlex
import subprocess
import sys
import tomllib

from doc_blocks import DOCS, SHELLS, blocks, commands

from isobatch.run.store import read_metrics


def prepare(name, folder):
    """Write a page's files and return its commands."""
    page = DOCS / "extending" / f"{name}.md"
    for block in blocks(page, "python"):
        assert block.title, f"{block.place}: a reader must know which file it is"
        (folder / block.title).write_text(block.text, encoding="utf-8")
    return [words for block in blocks(page, *SHELLS) for words in commands(block)]


def do(launch, name, folder):
    """Do what a page says; return what each command printed."""
    return [launch(folder, words) for words in prepare(name, folder)]


def recipe(run):
    return tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))


def read_by(page):
    """Return the commands that a page's table shows at the beginning of a row."""
    text = (DOCS / "extending" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(isobatch [^`]+)` \|", text, re.M)


def test_every_page_is_tried():
    tried = {"objective", "algorithm", "environment", "encoder", "sink"}
    assert {page.stem for page in (DOCS / "extending").glob("*.md")} == tried


def test_a_policy_objective_and_who_needs_it(tmp_path, launch):
    first, train, resume = prepare("objective", tmp_path)
    assert launch(tmp_path, first).splitlines()[-1] == "spo {'spo_penalty': 2.0}"
    launch(tmp_path, train)
    (shown,) = blocks(DOCS / "extending" / "objective.md", "toml")
    promised = tomllib.loads(shown.text)["objective"]
    for name in ("spo", "python"):
        assert promised.items() <= recipe(tmp_path / "runs" / name)["objective"].items()

    readers = {line.split()[1]: shlex.split(line) for line in read_by("objective")}
    readers.pop("report")  # Of a study: tests/test_extensions.py.
    printed = {name: launch(tmp_path, words, tiny=True) for name, words in readers.items()}
    assert set(printed) == {"eval", "probe", "rescale", "show", "query"}
    assert "5 episodes" in printed["eval"]
    assert "noise scale" in printed["probe"].lower()
    assert "learning_rate" in printed["rescale"]
    assert "4 of 256" in printed["show"]
    assert re.search(r"spo\s+│\s+2\.0", printed["query"])

    run = tmp_path / "runs" / "spo"
    before = (run / "metrics.jsonl").read_bytes()
    without = resume[: resume.index("--import")]
    assert "'spo'" in launch(tmp_path, without, code=2)
    assert (run / "metrics.jsonl").read_bytes() == before
    launch(tmp_path, resume)
    rows = read_metrics(run)
    assert rows[-1]["env_steps"] > 6100
    (resumed,) = [row for row in rows if row.get("resumed")]
    assert resumed["approx_kl"] > 0


def test_an_algorithm(tmp_path, launch):
    printed = do(launch, "algorithm", tmp_path)
    assert 0 < float(printed[0].splitlines()[-1]) < 0.5
    run = tmp_path / "runs" / "mine"
    kept = recipe(run)
    assert kept["algo"] == "my-ppo"
    assert kept["objective"]["coefficients"] == {"advantage_bound": 2.0}
    assert kept["batch"]["n_epochs"] == 4
    assert all(0 <= row["bounded_fraction"] < 0.5 for row in read_metrics(run))
    assert "5 episodes" in printed[2]
    # What it fixes, and who needs the module.
    shared = [*prepare("algorithm", tmp_path)[1][:-1], "runs/shared", "--architecture", "shared"]
    assert "architecture must be dual" in launch(tmp_path, shared, code=2)
    for name in ("resume", "eval", "probe"):
        assert "'my-ppo'" in launch(tmp_path, ["isobatch", name, "runs/mine"], code=2)
    rescale = ["isobatch", "rescale", "runs/mine", "--n-envs", "4"]
    unknown = "algorithm 'my-ppo' is not registered"
    assert unknown in launch(tmp_path, rescale)
    assert unknown not in launch(tmp_path, [*rescale, "--import", "my_ppo"])
    launch(tmp_path, ["isobatch", "show", "runs/mine"])
    query = ["isobatch", "query", "select algo, advantage_bound from runs", "--runs", "runs/mine"]
    assert "my-ppo" in launch(tmp_path, query)


def test_the_algorithm_has_the_network_it_says(tmp_path, launch):
    prepare("algorithm", tmp_path)
    (tmp_path / "look.py").write_text(
        "import isobatch, my_ppo\n"
        "run = isobatch.train('CartPole-v1', algo='my-ppo', total_timesteps=1024, quiet=True)\n"
        "model = isobatch.load(run.path).model\n"
        "print(model.actor.encoder.n_features, model.critic_encoder.n_features)\n"
    )
    assert launch(tmp_path, ["python", "look.py"]).split() == ["64", "128"]


def test_an_environment(tmp_path, launch):
    python, train, evaluate, vectors, evaluated, tensors = do(launch, "environment", tmp_path)
    single, vector = map(float, python.split())
    assert single > -1
    assert vector > -1
    assert "Corridor-v0: mean return" in train
    assert "python:corridors: mean return" in vectors
    for each in (evaluate, evaluated):
        assert "20 episodes" in each
    assert float(tensors) > -1
    runs = tmp_path / "runs"
    assert recipe(runs / "single")["env"] == "python:make_env"
    assert recipe(runs / "vector")["batch"]["n_envs"] == 4
    assert recipe(runs / "tensor")["batch"]["n_envs"] == 256
    assert recipe(runs / "corridor")["environment"]["env_options"] == ["length=12"]
    assert recipe(runs / "corridors")["env"] == "python:corridors"
    # A module that only a file names is not imported.
    by_module = prepare("environment", tmp_path)[1]
    by_module[by_module.index("Corridor-v0")] = "my_envs:Corridor-v0"
    launch(tmp_path, [*by_module[:-1], "runs/module"])
    assert "--import my_envs" in launch(tmp_path, ["isobatch", "eval", "runs/module"], code=2)
    for confirmed in (["--import", "my_envs"],
                      ["--import", "os", "--env", "my_envs:Corridor-v0"]):  # fmt: skip
        launch(tmp_path, ["isobatch", "eval", "runs/module", *confirmed])
    refused = launch(tmp_path, ["isobatch", "probe", "runs/corridors", "--import", "my_vector"], 2)
    assert "a vector of 4 environments" in refused


def test_an_encoder(tmp_path, launch):
    trained, evaluated, printed = do(launch, "encoder", tmp_path)
    assert "CartPole-v1: mean return" in trained
    assert "5 episodes" in evaluated
    assert recipe(tmp_path / "runs" / "gated")["model"]["encoder"] == "gated"
    action, score = printed.split()
    assert action in "01"
    assert float(score) > 8
    for name in ("module", "function"):
        assert recipe(tmp_path / "runs" / name)["model"]["encoder"] == "custom"
    words = ["isobatch", "eval", "runs/module"]
    assert "encoder=" in launch(tmp_path, words, code=2)


def test_a_sink(tmp_path, launch):
    (printed,) = do(launch, "sink", tmp_path)
    (shown,) = blocks(DOCS / "extending" / "sink.md", "text")
    # Its complaint, once; then stopped after three iterations; then done.
    for text in (shown.text, printed):
        complaint, stopped, done = text.splitlines()
        assert "Broken" in complaint
        assert "no such server" in complaint
        assert stopped == "True 3"
        assert done.startswith("False 6")
    rows = read_metrics(tmp_path / "runs" / "heard")
    assert [row["iterations"] for row in rows if row.get("resumed")] == [4]
    with open(tmp_path / "rows.csv", newline="") as file:
        heard = list(csv.DictReader(file))
    assert [int(row["env_steps"]) for row in heard] == [row["env_steps"] for row in rows]


def test_a_fresh_interpreter_does_the_same(tmp_path):
    """Without the launcher: PyTorch is imported by the program itself."""
    folder, (first, *_) = tmp_path, prepare("sink", tmp_path)
    assert first == ["python", "my_sink.py"]
    subprocess.run([sys.executable, "my_sink.py"], cwd=folder, check=True, capture_output=True)
    assert len(read_metrics(folder / "runs" / "heard")) > 3
