"""Runs commands one after the other, each in a process of its own that has PyTorch already.

    python launcher.py      reads lines of JSON, [folder, [word, ...], is tiny]; answers
                            [exit code, output]

Every command is `python FILE` or `isobatch ...`; a tiny one is bounded as `tiny` says. Importing
PyTorch, EnvPool and others takes longer than what the pages' examples do, so it is done once and
forked.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback

import duckdb  # noqa: F401
import gymnasium.vector  # noqa: F401
import plotly.graph_objects  # noqa: F401
import scipy.special  # noqa: F401

import isobatch.algos.ppo
import isobatch.probe.laboratory
import isobatch.run.training  # noqa: F401
from isobatch.cli import main
from isobatch.envs.pool import load_envpool

import tiny  # isort: skip


def run(words):
    """Do what the command would in a fresh interpreter; return its exit code."""
    sys.argv = words[1:]
    try:
        if words[0] == "python":
            sys.path.insert(0, os.getcwd())
            runpy.run_path(words[1], run_name="__main__")
            return 0
        return main(words[1:])
    except SystemExit as exit:
        return exit.code or 0
    except BaseException:
        traceback.print_exc()
        return 1


def fork(folder, words, is_tiny):
    """Return (exit code, what it printed)."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            os.chdir(folder)
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            if is_tiny:
                tiny.bound()
            code = run(words)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read().decode()


load_envpool()  # As commands do: with what Procgen draws by.
# The folder of this file is no part of what a user's program sees.
del sys.path[0]
for line in sys.stdin:
    print(json.dumps(fork(*json.loads(line))), flush=True)
