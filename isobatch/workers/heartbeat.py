"""A watch over the other workers: which of them is lost, and which hangs, said by name.

An exchange waits for its last worker, for minutes if need be, and does not say for whom. So every
worker writes a beat to the store every two seconds from a thread of its own, and reads the others'.
Where one is missing, all end with a code of their own, and whoever started them starts them again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from isobatch.errors import printable
from isobatch.workers.membership import LOST, Group

INTERVAL = 2.0
"""Seconds between two beats."""
SILENCE = 26.0
"""Seconds without a beat until a worker is lost. With a beat and a look it is named within 30 s."""
LEAST_PATIENCE, ITERATIONS = 60.0, 10.0
"""A worker hangs that keeps the others waiting for so many seconds, and for so many iterations."""
FIRST_PATIENCE = 600.0
"""And before an iteration was measured: making environments and compiling take their time."""


class Beat(NamedTuple):
    """What a worker says of itself."""

    count: int
    exchanges: int
    steps: int
    where: str
    done: bool


class Heartbeat:
    """Beats for this worker and watches the others, from now until `close`.

    To be made right after `join`. Two threads: one talks to the store and may hang in it, the other
    judges and needs nothing but a clock.
    """

    def __init__(
        self,
        group: Group,
        *,
        silence: float = SILENCE,
        interval: float = INTERVAL,
        patience: float = FIRST_PATIENCE,
    ) -> None:
        self.patience = patience
        """Seconds that the others may wait for a worker that makes no progress."""
        self._group, self._silence, self._interval = group, silence, interval
        self._over = threading.Event()
        self._steps, self._done = 0, False
        now = time.monotonic()
        self._heard = now
        self._beats: dict[int, Beat] = {}
        self._beaten = dict.fromkeys(range(group.size), now)
        self._moved = dict.fromkeys(range(group.size), now)
        self._lock = threading.Lock()
        self._talk = threading.Thread(target=self._talking, daemon=True, name="heartbeat")
        self._talk.start()
        threading.Thread(target=self._watching, daemon=True, name="heartbeat-watch").start()

    def advance(self) -> None:
        """Note progress within long work that the others wait for, such as an evaluation.

        Exchanges are progress by themselves.
        """
        self._steps += 1

    def expect(self, seconds: float) -> None:
        """Be as patient as iterations of so many seconds ask, here and in exchanges.

        An exchange gives up later than the watch, which knows whom to name.
        """
        self.patience = max(LEAST_PATIENCE, ITERATIONS * seconds)
        self._group.set_timeout(2 * self.patience + self._silence)

    def close(self, done: bool = True) -> None:
        """Stop watching the others, and tell them that this worker is done.

        One that fails is not done: the others do not wait for it for long.
        """
        self._done = done
        self._over.set()
        self._talk.join(2 * self._interval + 1)

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(done=kind is None)

    def _talking(self) -> None:
        """Beat and listen; what fails is tried again on a new connection until the watch ends it.

        On a connection of its own: the group's serves one call at a time, and waits in it.
        """
        store: Store | None = None
        count, over = 0, False
        while not over:
            over = self._over.wait(self._interval if count else 0)
            count += 1
            try:
                store = store or self._group.connect(self._interval)
                self._round(store, count, over and self._done)
            except RuntimeError:
                store = None

    def _round(self, store: Store, count: int, done: bool) -> None:
        own = Beat(count, self._group.exchanges, self._steps, _place(), done)
        store.set(_key(self._group.rank), json.dumps(own))
        ranks = [rank for rank in range(self._group.size) if store.check([_key(rank)])]
        found = {
            rank: Beat(*json.loads(text))
            for rank, text in zip(ranks, store.multi_get([_key(r) for r in ranks]), strict=True)
        }
        now = time.monotonic()
        with self._lock:
            self._heard = now
            for rank, beat in found.items():
                last = self._beats.get(rank)
                if last is None or beat.count != last.count:
                    self._beaten[rank] = now
                if last is None or beat[1:3] != last[1:3]:
                    self._moved[rank] = now
            self._beats = found

    def _watching(self) -> None:
        tick = min(0.5, self._silence / 8)
        looked = time.monotonic()
        while not self._over.wait(tick):
            now = time.monotonic()
            if now - looked > self._silence / 2:
                self._forgive(now)  # This process was stopped itself, and knows nothing of others.
            looked = now
            with self._lock:
                problem = self._problem(now)
            if problem is not None and not self._over.is_set():
                _give_up(problem)

    def _forgive(self, now: float) -> None:
        with self._lock:
            self._heard = now
            self._beaten = dict.fromkeys(self._beaten, now)
            self._moved = dict.fromkeys(self._moved, now)

    def _problem(self, now: float) -> str | None:
        """Return what is wrong with another worker, or with the store, in a line.

        Of the others by what was last heard: a store that does not answer is no silence of theirs.
        """
        if now - self._heard > self._silence:
            host, port = self._group.member.host, self._group.member.port
            return (
                f"the rendezvous host is gone: {host}, port {port}, has not answered "
                f"for {now - self._heard:.0f} s"
            )
        done = {rank for rank, beat in self._beats.items() if beat.done}
        for rank in self._beaten.keys() - done:
            silent = self._heard - self._beaten[rank]
            if silent > self._silence:
                return f"{self._group.peers[rank]} has not been heard from for {silent:.0f} s"
        furthest = max(
            (beat.exchanges for beat in self._beats.values() if not beat.done), default=0
        )
        for rank, beat in self._beats.items():
            still = self._heard - self._moved[rank]
            if beat.exchanges < furthest and still > self.patience:
                return (
                    f"{self._group.peers[rank]} hangs: the others wait for it, and it has made no "
                    f"progress for {still:.0f} s, {beat.where}"
                )
        return None


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _place() -> str:
    """Return where the main thread is, for the others to say should it hang there."""
    frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "at an unknown place"
    code = frame.f_code
    return f"in {code.co_name}, {Path(code.co_filename).name} line {frame.f_lineno}"


def _give_up(problem: str) -> None:
    """End this process at once: its main thread may wait in an exchange that never ends."""
    for child in multiprocessing.active_children():
        child.kill()
    os.write(2, f"isobatch: {printable(problem)}\n".encode())
    os._exit(LOST)
