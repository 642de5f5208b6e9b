"""The notebook runs from top to bottom, and is kept without outputs."""

from pathlib import Path

import nbclient
import nbformat
from doc_blocks import DOCS, ROOT
from tiny import STEPS

NOTEBOOK = DOCS / "notebooks" / "first-steps.ipynb"
BOUND = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport tiny\ntiny.bound()"
"""Run before its cells."""


def shown(cell):
    """Return all that a cell printed or displayed, as text."""
    parts = [each.get("text", each.get("data", {})) for each in cell["outputs"]]
    return "\n".join(part if isinstance(part, str) else "\n".join(map(str, part)) + str(part)
                     for part in parts)  # fmt: skip


def test_it_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOBATCH_BUDGET", str(STEPS))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = {cell["source"]: cell for cell in notebook.cells if cell["cell_type"] == "code"}
    assert not any(cell["outputs"] for cell in cells.values())

    notebook.cells.insert(0, nbformat.v4.new_code_cell(BOUND))
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(tmp_path))

    def after(beginning):
        (found,) = (cell for text, cell in cells.items() if text.startswith(beginning))
        return shown(found)

    assert f"of {STEPS:,} env steps" in after("run = isobatch.train")
    assert "Evaluation return" in after("run.plot()")
    assert "clip_fraction" in after("metrics = run.to_pandas()")
    assert "Change n_envs from 8 to 64" in after("rescaled = ")
    assert "2x32" in after("probe = isobatch.probe.run")
    assert "gradient steps" in after("print(isobatch.advise")
