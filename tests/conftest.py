import os
import signal
from typing import Any

import pytest
from hypothesis import settings

# PyTorch's threads spin while they wait for each other. Where workers share the cores, an image
# network takes four times the CPU time for it. Read once, when PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from isobatch import objectives, registry
from isobatch.update import ahead

# A shell lets what it starts in the background ignore Ctrl-C, and so would the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("isobatch", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("isobatch")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _compiled_apart(tmp_path_factory):
    """What tests compile is kept for the other tests of this session only."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ[ahead.FOLDER] = str(shared / "compiled")


@pytest.fixture
def traced_only(monkeypatch):
    """Updates as the compiler gets them, traced to a graph, but without its machine code.

    Machine code takes PyTorch's compiler half a minute for each.
    """

    class Graph:
        def __init__(self, function, tensors, _):
            with torch.no_grad(), ahead.traced():
                self.graph = make_fx(function)(*tensors)

        def boxed_run(self, tensors):
            with torch.no_grad():
                return list(self.graph(*tensors))

    monkeypatch.setattr(ahead, "_runner", Graph)


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch):
    """A name that a test registers ends with it; the tables stay the same objects."""
    monkeypatch.delenv(registry.IMPORTS, raising=False)
    tables: list[dict[str, Any]] = [
        objectives._LOSSES, registry.OBJECTIVES, registry.ALGORITHMS, registry.ENCODERS,
        registry.ENVIRONMENTS,
    ]  # fmt: skip
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
