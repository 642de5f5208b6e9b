"""Commands of the pages, run outside pytest in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def launch():
    """Return a function that runs a command in a folder: -> what it printed."""
    with subprocess.Popen(
        [sys.executable, HERE / "launcher.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},  # This code, whatever is installed.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        asked, answers = process.stdin, process.stdout
        assert asked
        assert answers

        def run(folder, words, code=0, tiny=False):
            print(json.dumps([str(folder), words, tiny]), file=asked, flush=True)
            found, output = json.loads(answers.readline())
            assert found == code, f"{' '.join(words)}\n{output}"
            return output

        yield run
        asked.close()
