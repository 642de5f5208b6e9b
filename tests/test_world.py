"""Workers and shards: who owns what, and sums whose bits do not depend on who added them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isobatch.errors import UserError
from isobatch.experience import Shards
from isobatch.world import ALONE, World


class Threads:
    """Workers that are threads of one process; gloo's are tested in `workers`."""

    def __init__(self, size: int) -> None:
        self.size, self.slots = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=20)

    def member(self, rank: int) -> Any:
        """Return the group as one of them has it."""
        return Member(self, rank)

    def exchange(self, rank: int, own: Any) -> list[Any]:
        """Return what each gave."""
        self.slots[rank] = own
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


class Member:
    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads, self.rank, self.size = threads, rank, threads.size

    def gather_bytes(self, own: torch.Tensor) -> list[torch.Tensor]:
        assert own.dtype == torch.uint8
        return [each.clone() for each in self.threads.exchange(self.rank, own)]

    def gather_objects(self, own: bytes) -> list[bytes]:
        return self.threads.exchange(self.rank, own)

    def broadcast(self, own: bytes | None) -> bytes:
        return self.threads.exchange(self.rank, own)[0]


def each_worker(size: int, shards: int, work: Callable[[World], Any]) -> list[Any]:
    """Return what each of several workers comes to."""
    threads = Threads(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(World(shards, threads.member(rank))), range(size)))


@given(st.integers(1, 9), st.integers(1, 12))
def test_every_shard_has_one_owner(size, shards):
    owned = each_worker(size, shards, lambda world: list(world.owned))
    assert [place for each in owned for place in each] == list(range(shards))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


@given(st.integers(2, 8), st.integers(1, 11), st.integers(0, 1000))
def test_a_sum_over_shards_has_the_same_bits_whoever_adds(size, shards, seed):
    rows = torch.randn(shards, 5, generator=torch.Generator().manual_seed(seed))
    rows *= 10.0 ** torch.arange(shards).remainder(7)[:, None]
    alone = World(shards).folded(list(rows), rows[0])
    torch.testing.assert_close(alone, rows.sum(0))
    found = each_worker(
        size, shards, lambda world: world.folded([rows[k] for k in world.owned], rows[0])
    )
    for total in found:
        assert torch.equal(total, alone)


def test_the_order_of_a_sum_would_show():
    """What the test above can fail by: numbers whose sum depends on the order."""
    rows = [torch.tensor([value]) for value in (1e8, 1.0, -1e8, 1.0)]
    tree = World(4).folded(rows, rows[0])
    assert float(tree) != float(sum(rows, torch.zeros(1)))


@given(st.integers(1, 6), st.integers(1, 7))
def test_tensors_of_all_types_are_gathered_in_the_order_of_shards(size, shards):
    def own(place: int) -> dict[str, torch.Tensor]:
        return {
            "flags": torch.tensor([[place % 2 == 0]]),
            "numbers": torch.full((2, 3), place + 0.5, dtype=torch.float64),
            "images": torch.full((1, 2, 2), place, dtype=torch.uint8),
            "none": torch.zeros(0, 3),
        }

    found = each_worker(
        size, shards, lambda world: world.gather_named([own(place) for place in world.owned])
    )
    for told in found:
        assert len(told) == shards
        for place, each in enumerate(told):
            for name, tensor in own(place).items():
                assert torch.equal(each[name], tensor)
                assert each[name].dtype == tensor.dtype


@given(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.integers(0, 100))
def test_rows_are_picked_from_whoever_has_them(size, shards, seed):
    generator = torch.Generator().manual_seed(seed)
    steps, n_envs = 5, 4
    seen = torch.randn(steps + 1, n_envs, 3, generator=generator)
    rows = torch.randperm(steps * n_envs, generator=generator)[:7]
    each = n_envs // shards

    def work(world: World) -> torch.Tensor:
        own = {
            place: {"vector": seen[:, place * each : (place + 1) * each]} for place in world.owned
        }
        return Shards(world, own, each, 12).picked(rows)["vector"]

    for found in each_worker(size, shards, work):
        assert torch.equal(found, seen[:-1].flatten(0, 1)[rows])


def test_a_users_error_in_one_worker_is_everyones():
    def work(world: World) -> str:
        def attempt() -> str:
            if world.rank == 1:
                raise UserError("environment 3 raised")
            return "fine"

        with pytest.raises(UserError, match="environment 3 raised"):
            world.agreed(attempt)
        return world.agreed(lambda: "fine")

    assert each_worker(3, 3, work) == ["fine"] * 3


def test_alone_nothing_is_sent():
    assert ALONE.told({"a": 1}) == [{"a": 1}]
    assert ALONE.from_first(b"x") == b"x"
    assert not ALONE.is_sharded
    assert ALONE.is_first
