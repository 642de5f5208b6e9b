import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from isobatch.algos.phase import PhaseBuffer
from isobatch.errors import DamagedFile, UserError

ODD_BITS = [
    0x80000000,  # -0.0
    0x00000001,  # the smallest number
    0x7F800000,  # infinity
    0xFF800000,
    0x7FC00001,  # NaN with a payload
    0xFFC12345,
    0x7F800001,  # signalling NaN
]
PLENTY = 1 << 30


@st.composite
def rollouts(draw):
    """Return some rollouts: (observations, valid, numbers) of equal T and N."""
    n_steps, n_envs = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    bits = st.one_of(st.sampled_from(ODD_BITS), st.integers(0, 2**32 - 1))
    shape = n_steps + 1, n_envs
    made = []
    for _ in range(draw(st.integers(1, 3))):
        image = draw(arrays.arrays(np.uint8, (*shape, 2, 3, 2)))
        vector = draw(arrays.arrays(np.uint32, (*shape, 3), elements=bits)).view(np.float32)
        valid = draw(arrays.arrays(bool, (n_steps, n_envs)))
        observations = {"image": torch.from_numpy(image), "vector": torch.from_numpy(vector)}
        targets = torch.arange(valid.size, dtype=torch.float32).view(valid.shape) + 100 * len(made)
        pairs = torch.stack([targets, -targets], -1)
        made.append((observations, torch.from_numpy(valid), {"target": targets, "pair": pairs}))
    return made


def segments_of(rollouts):
    """Return what each segment holds: {name: rows}, by the definition."""
    segments = []
    for observations, valid, numbers in rollouts:
        for n in range(valid.shape[1]):
            times = [t for t in range(len(valid)) if valid[t, n]]
            if times:
                columns = {**observations, **numbers}
                segments.append({name: tensor[times, n] for name, tensor in columns.items()})
    return segments


def bits(tensor):
    return tensor.shape, tensor.dtype, tensor.contiguous().view(torch.uint8).tolist()


def assert_same_bits(batch, expected):
    found = {**batch.observations, **batch.numbers}
    assert found.keys() == expected[0].keys()
    for name, tensor in found.items():
        assert bits(tensor) == bits(torch.cat([segment[name] for segment in expected]))


def frames(n_envs=4, n_steps=6, seed=0):
    """Return a rollout (observations, valid, numbers) of noise, all of it valid."""
    generator = torch.Generator().manual_seed(seed)
    shape = n_steps + 1, n_envs, 3, 8, 8
    image = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    target = torch.randn(n_steps, n_envs, generator=generator)
    return {"image": image}, torch.ones(n_steps, n_envs, dtype=torch.bool), {"target": target}


@pytest.fixture
def spill(tmp_path):
    return tmp_path / "phase"


@pytest.fixture
def on_disk(spill):
    buffer = PhaseBuffer(0, spill)
    buffer.add(*frames())
    return buffer


@given(rollouts(), st.sampled_from([0, 60, 200, PLENTY]), st.randoms(use_true_random=False))
def test_valid_rows_come_back_to_the_bit_in_the_order_asked_for(rollouts, memory, random):
    expected = segments_of(rollouts)
    with TemporaryDirectory() as folder:
        buffer = PhaseBuffer(memory, Path(folder) / "phase")
        for rollout in rollouts:
            buffer.add(*rollout)
        assert len(buffer) == len(expected)
        assert buffer.rows == sum(int(valid.sum()) for _, valid, _ in rollouts)
        order = random.sample(range(len(expected)), len(expected))
        groups = [order[start : start + 2] for start in range(0, len(order), 2)]
        batches = list(buffer.batches(groups))
    assert [batch.segments for batch in batches] == groups
    for batch in batches:
        assert_same_bits(batch, [expected[place] for place in batch.segments])


@given(rollouts(), st.integers(0, 400))
def test_memory_is_bounded_and_the_file_holds_the_rest(rollouts, memory):
    with TemporaryDirectory() as folder:
        spill = Path(folder) / "phase"
        unbounded, buffer = PhaseBuffer(PLENTY, spill), PhaseBuffer(memory, spill)
        for rollout in rollouts:
            unbounded.add(*rollout)
            buffer.add(*rollout)
            assert buffer.memory_bytes <= memory
            assert buffer.memory_bytes + buffer.disk_bytes == unbounded.memory_bytes
            assert (spill.stat().st_size if spill.exists() else 0) == buffer.disk_bytes
        assert bool(buffer.disk_bytes) == (unbounded.memory_bytes > memory)


@pytest.mark.parametrize("block_bytes", [3000, 100])
def test_blocks_of_memory_may_be_many_or_small(spill, monkeypatch, block_bytes):
    monkeypatch.setattr("isobatch.algos.phase.BLOCK_BYTES", block_bytes)
    rollout = frames(n_envs=8)
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*rollout)
    (batch,) = buffer.batches([list(range(8))])
    assert_same_bits(batch, segments_of([rollout]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64, torch.bool])
def test_every_type_and_memory_order_is_kept(spill, dtype):
    rows = torch.randn(4, 2, 5, 5, 3, generator=torch.Generator().manual_seed(0))
    image = rows.mul(100).to(dtype).movedim(-1, 2)
    valid = torch.ones(3, 2, dtype=torch.bool)
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add({"image": image}, valid, {})
    (batch,) = buffer.batches([[1, 0]])
    assert batch.observations["image"].dtype == dtype
    assert torch.equal(batch.observations["image"], torch.cat([image[:3, 1], image[:3, 0]]))


def test_frames_seen_long_before_in_the_segment_take_little_room(spill):
    image = torch.randint(256, (65, 1, 3, 64, 64), dtype=torch.uint8)
    again = torch.cat([image] * 4)
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add({"image": again}, torch.ones(len(again) - 1, 1, dtype=torch.bool), {})
    assert buffer.memory_bytes < 1.1 * image.numel()


def test_what_is_given_back_is_the_callers_own(spill):
    rollout = frames()
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*rollout)
    expected = segments_of([rollout])
    for _ in range(2):
        (batch,) = buffer.batches([[0, 1]])
        assert_same_bits(batch, expected[:2])
        batch.observations["image"].zero_()
        batch.numbers["target"].zero_()


def test_a_rollout_may_be_changed_once_it_is_added(spill):
    rollout = frames()
    expected = segments_of([rollout])
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*rollout)
    rollout[0]["image"].zero_()
    rollout[2]["target"].zero_()
    (batch,) = buffer.batches([[0, 1, 2, 3]])
    assert_same_bits(batch, expected)


def test_rollouts_of_another_kind_are_refused(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    observations, valid, numbers = frames()
    buffer.add(observations, valid, numbers)
    with pytest.raises(ValueError, match="same observations"):
        buffer.add({"image": observations["image"].float()}, valid, numbers)
    with pytest.raises(ValueError, match="same observations and numbers"):
        buffer.add(observations, valid, {})


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_groups_hold_every_segment_once(spill, size):
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*frames(n_envs=10))
    groups = buffer.segment_groups(size, torch.Generator().manual_seed(0))
    assert sorted(place for group in groups for place in group) == list(range(10))
    assert all(len(group) == size for group in groups[:-1])
    assert 0 < len(groups[-1]) <= size


def test_groups_follow_the_generator(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*frames(n_envs=10))
    generator = torch.Generator().manual_seed(0)
    first, second = (buffer.segment_groups(3, generator) for _ in range(2))
    assert first != second
    assert first == buffer.segment_groups(3, torch.Generator().manual_seed(0))


def test_an_empty_phase_has_no_groups(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    observations, valid, numbers = frames()
    buffer.add(observations, torch.zeros_like(valid), numbers)
    assert len(buffer) == buffer.rows == buffer.memory_bytes == 0
    assert buffer.segment_groups(4, torch.Generator()) == []


@given(rollouts(), st.integers(1, 3), st.integers(0, 1000))
def test_attached_numbers_stay_with_their_rows(rollouts, size, seed):
    generator = torch.Generator().manual_seed(seed)
    with TemporaryDirectory() as folder:
        buffer = PhaseBuffer(PLENTY, Path(folder) / "phase")
        for rollout in rollouts:
            buffer.add(*rollout)
        # Attached while the next group is being read, as the auxiliary phase does.
        for batch in buffer.batches(buffer.segment_groups(size, generator)):
            buffer.attach(batch.segments, "twice", 2 * batch.numbers["pair"])
        for batch in buffer.batches(buffer.segment_groups(size + 1, generator)):
            assert torch.equal(batch.numbers["twice"], 2 * batch.numbers["pair"])


def test_numbers_not_attached_yet_are_nan(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*frames(n_steps=2))
    buffer.attach([1], "logit", torch.tensor([1.0, 2.0]))
    (batch,) = buffer.batches([[1, 0]])
    torch.testing.assert_close(
        batch.numbers["logit"], torch.tensor([1.0, 2.0, torch.nan, torch.nan]), equal_nan=True
    )


def test_attached_numbers_carry_no_gradient(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*frames(n_steps=2))
    buffer.attach([0], "logit", 2 * torch.ones(2, requires_grad=True))
    (batch,) = buffer.batches([[0]])
    assert not batch.numbers["logit"].requires_grad
    assert batch.numbers["logit"].tolist() == [2.0, 2.0]


def test_attaching_rows_of_another_count_is_refused(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*frames(n_steps=6))
    with pytest.raises(RuntimeError, match="sum exactly to 11"):
        buffer.attach([0, 1], "logit", torch.zeros(11))


@pytest.mark.parametrize("end", [PhaseBuffer.clear, PhaseBuffer.close])
def test_a_cleared_buffer_leaves_no_file_and_takes_the_next_phase(spill, end):
    buffer = PhaseBuffer(3000, spill)
    for seed in (1, 2):
        rollout = frames(seed=seed)
        buffer.add(*rollout)
        assert spill.exists()
        (batch,) = buffer.batches([[3, 0, 1, 2]])
        expected = segments_of([rollout])
        assert_same_bits(batch, [expected[place] for place in (3, 0, 1, 2)])
        end(buffer)
        assert not spill.exists()
        assert len(buffer) == buffer.rows == buffer.memory_bytes == buffer.disk_bytes == 0


def test_the_next_phase_may_be_of_another_kind(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*frames())
    buffer.attach([0], "logit", torch.zeros(6))
    buffer.clear()
    buffer.add({"vector": torch.ones(3, 1, 2)}, torch.ones(2, 1, dtype=torch.bool), {})
    (batch,) = buffer.batches([[0]])
    assert torch.equal(batch.observations["vector"], torch.ones(2, 2))
    assert batch.numbers == {}


def test_a_file_left_by_a_killed_run_is_replaced(spill):
    spill.write_bytes(b"\0" * 100_000)
    rollout = frames()
    buffer = PhaseBuffer(0, spill)
    buffer.add(*rollout)
    assert spill.stat().st_size == buffer.disk_bytes < 100_000
    (batch,) = buffer.batches([[0, 1, 2, 3]])
    assert_same_bits(batch, segments_of([rollout]))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read on Linux only")
def test_memory_is_what_the_observations_take_and_returns_to_the_system(spill):
    image = torch.randint(256, (65, 16, 3, 128, 128), dtype=torch.uint8)
    valid = torch.ones(64, 16, dtype=torch.bool)
    buffer = PhaseBuffer(PLENTY, spill)
    before = resident_bytes()
    buffer.add({"image": image}, valid, {})
    held = resident_bytes() - before
    assert buffer.memory_bytes > 48e6
    assert buffer.memory_bytes - 8e6 < held < buffer.memory_bytes + 16e6
    buffer.clear()
    assert resident_bytes() - before < 16e6


class Watched(PhaseBuffer):
    """Tells which groups were read, and by which thread."""

    def __init__(self, memory, spill):
        super().__init__(memory, spill)
        self.reads = Queue()

    def _observations(self, group):
        observations = super()._observations(group)
        self.reads.put((group, threading.current_thread()))
        return observations


def test_one_group_is_read_ahead_by_another_thread(spill):
    rollout = frames()
    buffer = Watched(0, spill)
    buffer.add(*rollout)
    batches = buffer.batches([[0], [1, 2], [3]])
    next(batches)
    for group in ([0], [1, 2]):
        read, thread = buffer.reads.get(timeout=60)
        assert read == group
        assert thread is not threading.current_thread()
    with pytest.raises(Empty):
        buffer.reads.get(timeout=0.2)
    spill.unlink()
    assert_same_bits(next(batches), segments_of([rollout])[1:3])
    with pytest.raises(FileNotFoundError):
        next(batches)


def exhaust(buffer):
    list(buffer.batches([[0], [1], [2]]))


def close_half_way(buffer):
    batches = buffer.batches([[0], [1], [2]])
    next(batches)
    batches.close()


def let_go(buffer):
    next(buffer.batches([[0], [1], [2]]))


def fail_half_way(buffer):
    with suppress(ZeroDivisionError):
        for _ in buffer.batches([[0], [1], [2]]):
            raise ZeroDivisionError


def read_nonsense(buffer):
    with pytest.raises(IndexError):
        list(buffer.batches([[0], [100], [2]]))


@pytest.mark.parametrize("use", [exhaust, close_half_way, let_go, fail_half_way, read_nonsense])
def test_the_thread_ends_with_the_iterator(spill, use):
    buffer = Watched(0, spill)
    buffer.add(*frames())
    before = threading.active_count()
    use(buffer)
    assert threading.active_count() == before
    _, reader = buffer.reads.get_nowait()
    assert not reader.is_alive()


def test_clearing_while_a_batch_is_being_read_is_no_error(spill):
    buffer = PhaseBuffer(PLENTY, spill)
    buffer.add(*frames(n_envs=64, n_steps=64))
    batches = buffer.batches([[0], list(range(64))])
    first = next(batches)
    kept = first.observations["image"].clone()
    buffer.clear()
    batches.close()
    assert torch.equal(first.observations["image"], kept)


def test_every_flipped_bit_of_the_file_is_noticed(spill):
    buffer = PhaseBuffer(0, spill)
    buffer.add(*frames(n_envs=1, n_steps=1))
    content = spill.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        spill.write_bytes(damaged)
        with pytest.raises(DamagedFile):
            next(buffer.batches([[0]]))


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_file_cut_short_is_noticed(on_disk, spill, kept):
    spill.write_bytes(spill.read_bytes()[:kept])
    with pytest.raises(DamagedFile, match="phase is damaged"):
        list(on_disk.batches([[0, 1, 2, 3]]))


def test_damage_is_told_in_its_turn(on_disk, spill):
    whole = spill.read_bytes()
    spill.write_bytes(whole[:-1])
    batches = on_disk.batches([[0], [1], [2], [3]])
    for _ in range(3):
        next(batches)
    with pytest.raises(DamagedFile):
        next(batches)


def test_a_full_disk_is_one_clear_line(spill):
    buffer = PhaseBuffer(2000, spill)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UserError, match="the disk is full") as error:
            buffer.add(*frames())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert len(buffer) == buffer.disk_bytes == 0
    assert buffer.memory_bytes <= 2000
