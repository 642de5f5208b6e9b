"""A study killed at any file operation, and run again, ends as one that was never killed."""

import shutil

from deadly import KILLED, OVER, STRIDE, in_child
from inside import here

from isobatch.run.store import CLOCK_COLUMNS, read_evaluations, read_metrics
from isobatch.study.queue import Queue

DESIGN = """
[study]
envs = ["CartPole-v1"]
budget = 32
seeds = 1
evaluate = 1
[base]
n_minibatches = 1
n_epochs = 1
hidden_sizes = [4]
compile = "off"
threads = 1
env_threads = 1
keep_policies = 0
eval_marks = 1
eval_episodes = 1
checkpoint_seconds = 1e-9
exact_resume = true
[arms]
a = { n_envs = 2, n_steps = 8 }
b = { n_envs = 3, n_steps = 5 }
"""
EVERY = 2 * STRIDE - 1
"""A study takes twice as long as a run; 1 stays 1."""


def essence(root):
    """Return what must be the same: scores and rows of every cell."""
    queue = Queue.open(root)
    assert set(queue.states().values()) == {"done"}
    found = {}
    for cell in queue.study.cells:
        path, result = queue.run_path(cell), queue.result(cell)
        rows = [
            {k: v for k, v in row.items() if k not in (*CLOCK_COLUMNS, "resumed")}
            for row in read_metrics(path)
        ]
        played = [row["episode_return"] for row in read_evaluations(path)]
        found[str(cell)] = (result.score, result.training_return, result.env_steps, rows, played)
    return found


def names(root):
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.suffix != ".attempts" and not path.match("checkpoints/*")
    )


def test_a_study_ends_the_same_whenever_it_was_killed(tmp_path):
    whole, root, design = tmp_path / "whole", tmp_path / "killed", tmp_path / "design.toml"
    design.write_text(DESIGN)

    def run_study(out):
        assert here("study", design, "--out", out, "--quiet") == 0

    run_study(whole)
    expected, files = essence(whole), names(whole)
    code, operations = in_child(lambda: run_study(tmp_path / "counted"), fatal=-1)
    assert code == OVER
    assert operations > 100
    for fatal in range(1 + operations % EVERY, operations + 1, EVERY):
        place = f"killed at operation {fatal} of {operations}"
        assert in_child(lambda: run_study(root), fatal)[0] == KILLED, place
        assert in_child(lambda: run_study(root), fatal // 2 + 1)[0] in (KILLED, OVER), place
        run_study(root)
        assert essence(root) == expected, place
        assert here("check", root) == 0, place
        assert names(root) == files, place
        shutil.rmtree(root)
