"""Measure what a phase of real Procgen frames takes: memory, and time to compress and read back.

The frames are those of uniformly random actions; no network is run. Some segments are compared
with checksums taken before they were compressed.

python benchmarks/phase_memory.py --env StarpilotHard-v0 --out phase.json
"""

import argparse
import json
import random
import resource
import tempfile
import time
import zlib
from pathlib import Path

import torch
from torch import Tensor

from isobatch.algos.phase import PhaseBuffer
from isobatch.envs import BatchedEnv, make
from isobatch.envs.seeds import env_seeds
from isobatch.machine import keep_freed_memory
from isobatch.presets import preset
from isobatch.recipe import memory_size

GROUP = 16
"""Segments read at a time."""
CHECKED = 1 / 20
"""Share of the segments compared."""
PROGRESS_SECONDS = 10


class Progress:
    """Prints a line now and then."""

    def __init__(self, total: int) -> None:
        self._total, self._last = total, time.perf_counter()

    def __call__(self, what: str, done: int) -> None:
        """Print how far it is, unless a line was printed just before."""
        if time.perf_counter() - self._last > PROGRESS_SECONDS:
            self._last = time.perf_counter()
            print(f"{what} {done:,} of {self._total:,} frames", flush=True)


class Recorder:
    """Steps environments at random, over and over into the same memory."""

    def __init__(self, env: BatchedEnv, n_steps: int, seed: int) -> None:
        self._env, self._generator = env, torch.Generator().manual_seed(seed)
        first = env.reset()["image"]
        self.images = torch.empty((n_steps + 1, *first.shape), dtype=first.dtype)
        """[T+1, N, C, H, W]."""
        self.images[-1] = first
        self.valid = torch.empty(n_steps, env.n_envs, dtype=torch.bool)
        self.rewards = torch.empty(n_steps, env.n_envs)

    def collect(self) -> None:
        """Fill `images`, `valid` and `rewards` with the next rollout."""
        self.images[0] = self.images[-1]
        shape = self._env.n_envs, 1
        (choices,) = self._env.action_layout.counts
        with self._env.stepping():
            for t in range(len(self.valid)):
                step = self._env.step(torch.randint(choices, shape, generator=self._generator))
                self.images[t + 1] = step.observation["image"]
                self.valid[t], self.rewards[t] = step.valid, step.reward


def checksum(rows: Tensor) -> int:
    """Return the CRC of image rows [rows, C, H, W]."""
    return zlib.crc32(rows.contiguous().numpy().data)


def fill(
    buffer: PhaseBuffer, recorder: Recorder, n_rollouts: int, progress: Progress
) -> tuple[dict[int, int], float, float]:
    """Return the checksums of some segments, the environments' seconds and the compression's."""
    checksums, stepping, compressing = {}, 0.0, 0.0
    draw = random.Random(1)
    for _ in range(n_rollouts):
        start = time.perf_counter()
        recorder.collect()
        stepping += time.perf_counter() - start
        valid = recorder.valid
        for place, n in enumerate(valid.any(0).nonzero().flatten().tolist()):
            if draw.random() < CHECKED:
                rows = recorder.images[:-1, n][valid[:, n]]
                checksums[len(buffer) + place] = checksum(rows)
        start = time.perf_counter()
        buffer.add({"image": recorder.images}, valid, {"reward": recorder.rewards})
        compressing += time.perf_counter() - start
        progress("added", buffer.rows)
    return checksums, stepping, compressing


def count_changed(buffer: PhaseBuffer, checksums: dict[int, int]) -> int:
    """Return how many of the segments do not come back as they were."""
    batches = buffer.batches([[segment] for segment in checksums])
    return sum(
        checksum(batch.observations["image"]) != checksums[batch.segments[0]] for batch in batches
    )


def read_all(buffer: PhaseBuffer, progress: Progress) -> float:
    """Read the phase once in random order and return the seconds it took."""
    start, rows = time.perf_counter(), 0
    for batch in buffer.batches(buffer.segment_groups(GROUP, torch.Generator().manual_seed(1))):
        rows += len(batch.observations["image"])
        progress("read", rows)
    return time.perf_counter() - start


def peak_bytes() -> int:
    """Return the most memory this process held; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(args: argparse.Namespace, spill: Path) -> dict:
    """Collect, compress and read back a phase."""
    keep_freed_memory()
    recipe = preset(args.env, n_envs=args.n_envs, n_steps=args.n_steps)
    env = make(recipe, env_seeds(1, args.n_envs))
    recorder = Recorder(env, args.n_steps, seed=1)
    buffer = PhaseBuffer(args.phase_memory, spill)
    before = peak_bytes()
    n_rollouts = -(-args.frames // (args.n_envs * args.n_steps))
    progress = Progress(args.frames)
    checksums, stepping, compressing = fill(buffer, recorder, n_rollouts, progress)
    env.close()
    changed = count_changed(buffer, checksums)
    reading = read_all(buffer, progress)
    raw = buffer.rows * recorder.images[0, 0].nbytes
    compressed = buffer.memory_bytes + buffer.disk_bytes
    result = {
        "env": args.env,
        "n_envs": args.n_envs,
        "n_steps": args.n_steps,
        "phase_memory": args.phase_memory,
        "frames": buffer.rows,
        "segments": len(buffer),
        "raw_bytes": raw,
        "compressed_bytes": compressed,
        "ratio": raw / compressed,
        "memory_bytes": buffer.memory_bytes,
        "disk_bytes": buffer.disk_bytes,
        "peak_bytes": peak_bytes(),
        "peak_bytes_before_phase": before,
        "rollout_bytes": recorder.images.nbytes,
        "frames_per_second_in": buffer.rows / compressing,
        "frames_per_second_in_with_env": buffer.rows / (compressing + stepping),
        "frames_per_second_out": buffer.rows / reading,
        "segments_checked": len(checksums),
        "segments_changed": changed,
    }
    buffer.close()
    return result


def report(result: dict) -> str:
    """Return the result in words."""
    gigabytes = {key: f"{value / 1e9:.2f} GB" for key, value in result.items() if "bytes" in key}
    return "\n".join(
        [
            f"{result['env']}: {result['frames']:,} frames in {result['segments']:,} segments",
            f"raw {gigabytes['raw_bytes']}, compressed {gigabytes['compressed_bytes']} "
            f"({result['ratio']:.1f}x): {gigabytes['memory_bytes']} in memory, "
            f"{gigabytes['disk_bytes']} on disk",
            f"peak of the process {gigabytes['peak_bytes']}, of which "
            f"{gigabytes['rollout_bytes']} are the rollout being recorded",
            f"in {result['frames_per_second_in']:,.0f} frames/s, with the environment "
            f"{result['frames_per_second_in_with_env']:,.0f}; "
            f"out {result['frames_per_second_out']:,.0f}",
            f"{result['segments_changed']} of {result['segments_checked']} segments checked "
            "came back changed",
        ]
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="StarpilotHard-v0")
    parser.add_argument("--frames", type=int, default=2_097_152)
    parser.add_argument("--n-envs", type=int, default=256)
    parser.add_argument("--n-steps", type=int, default=256)
    parser.add_argument("--phase-memory", type=memory_size, default="4GB")
    parser.add_argument("--out", type=Path, help="write the numbers here too, as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, Path(folder) / "phase")
    print(report(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if result["segments_changed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
