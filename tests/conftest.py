from typing import Any

import pytest
import torch
from hypothesis import settings

from isobatch import objectives, registry

settings.register_profile("isobatch", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("isobatch")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch):
    """A name that a test registers ends with it; the tables stay the same objects."""
    monkeypatch.delenv(registry.IMPORTS, raising=False)
    tables: list[dict[str, Any]] = [objectives._LOSSES, registry.OBJECTIVES, registry.ALGORITHMS]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
