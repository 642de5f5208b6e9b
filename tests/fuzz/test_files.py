"""Whatever a file holds, reading it returns or says in one line what is wrong, and soon.

Each kind of file is damaged in some hundred ways, or in as many as ISOBATCH_FUZZ says
(`make test-faults`). Files that once failed are kept in corpus/, named KIND-WHAT.SUFFIX, and are
read again each time.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutate import damaged, misshapen, parsed, written
from readers import FILES, PLACES, Place

from isobatch.errors import UserError

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
EXAMPLES = int(os.environ.get("ISOBATCH_FUZZ", "0"))
"""Files in all; 0 is as many as every test run has."""
KINDS = len(FILES) + len(PLACES)
SLOWEST = 5.0
fuzzed = settings(
    max_examples=max(1, EXAMPLES // KINDS) if EXAMPLES else 40,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def holds(read: Callable[[], object]) -> None:
    """Check the property: it returns or raises one printable line, in time."""
    began = time.process_time()  # Other tests may run beside this one.
    try:
        read()
    except UserError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 3000
    took = time.process_time() - began
    assert took < SLOWEST, f"it took {took:.1f} s"


def as_file(kind: str, content: bytes, folder: Path) -> Callable[[], object]:
    """Return what reads the content as a file of that kind."""
    if kind in PLACES:
        place = Place.make(folder / "study", kind)
        return lambda: place.read(content)
    suffix, _, read = FILES[kind]
    file = folder / f"file{suffix}"
    file.write_bytes(content)
    return lambda: read(file)


def suffix_of(kind: str) -> str:
    if kind in PLACES:
        return ".jsonl" if kind in ("metrics", "evaluations") else ".json"
    return FILES[kind][0]


def good_file(kind: str, folder: Path) -> bytes:
    return Place.make(folder / "study", kind).good if kind in PLACES else FILES[kind][1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("kind", [*FILES, *PLACES])
def test_a_good_file_is_read(kind, folder):
    as_file(kind, good_file(kind, folder), folder)()


@pytest.mark.parametrize("kind", [*FILES, *PLACES])
def test_a_damaged_file_is_read_or_refused_in_a_line(kind, folder):
    good, suffix = good_file(kind, folder), suffix_of(kind)
    shapes = misshapen(parsed(good, suffix)).map(lambda data: written(data, suffix))

    @fuzzed
    @given(st.one_of(damaged(good), shapes))
    def check(content: bytes) -> None:
        holds(as_file(kind, content, folder))

    check()


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_what_once_failed_is_read_or_refused_in_a_line(file, folder):
    kind = next(kind for kind in (*FILES, *PLACES) if file.name.startswith(f"{kind}-"))
    holds(as_file(kind, file.read_bytes(), folder))
