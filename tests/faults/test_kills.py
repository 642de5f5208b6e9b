"""A process killed at any file operation leaves a run that resumes to the same bits."""

import os
import shutil

import pytest
from deadly import KILLED, OVER, STRIDE, in_child

import isobatch
from isobatch.run.examine import examine
from isobatch.run.store import CLOCK_COLUMNS, read_metrics, read_policy

SMALL = {
    "n_envs": 2, "n_steps": 8, "n_minibatches": 1, "n_epochs": 1, "hidden_sizes": (4,),
    "compile": "off", "threads": 1, "env_threads": 1, "total_timesteps": 64, "keep_policies": 2,
    "eval_marks": 1, "eval_episodes": 1, "checkpoint_seconds": 1e-9, "exact_resume": True,
}  # fmt: skip
ALGOS = {
    "ppo": {},
    "ppg": {"algo": "ppg", "n_policy_iterations": 2, "n_aux_epochs": 1},
    "reinforce": {"algo": "reinforce"},
}


def essence(path):
    rows = [
        {k: v for k, v in row.items() if k not in (*CLOCK_COLUMNS, "resumed")}
        for row in read_metrics(path)
    ]
    tensors, _ = read_policy(path)
    return rows, {name: each.numpy().tobytes() for name, each in tensors.items()}


@pytest.mark.parametrize(
    "algo", ["ppg", *(pytest.param(each, marks=pytest.mark.long) for each in ("ppo", "reinforce"))]
)
def test_old_or_new_never_neither(tmp_path, algo):
    settings = SMALL | ALGOS[algo]

    def train(out):
        isobatch.train("CartPole-v1", **settings, out=out, quiet=True)

    train(tmp_path / "whole")
    expected = essence(tmp_path / "whole")
    code, operations = in_child(lambda: train(tmp_path / "counted"), fatal=-1)
    assert code == OVER
    assert operations > 100
    for fatal in range(1 + operations % STRIDE, operations + 1, STRIDE):
        out = tmp_path / "killed"
        assert in_child(lambda out=out: train(out), fatal)[0] == KILLED, fatal
        if (out / "recipe.toml").exists():
            again, _ = in_child(lambda out=out: isobatch.resume(out, quiet=True), fatal // 2 + 1)
            assert again in (KILLED, OVER), fatal
            isobatch.resume(out, quiet=True)
        else:
            train(out)
        assert essence(out) == expected, f"killed at operation {fatal} of {operations}"
        assert all(each.is_whole for each in examine(out)), fatal
        litter = [name for name in os.listdir(tmp_path) if name.startswith(".")]
        assert not litter, f"killed at operation {fatal} of {operations}"
        shutil.rmtree(out)
