"""Stopping a run from outside, in seconds, without losing what it learned.

A run that is asked to stop ends after its iteration if that comes soon. After `GRACE` seconds what
is under way is abandoned by an exception, wherever it is but in a write. Where no exception gets
through, in native code, a thread that needs nothing of the main one ends the process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE, LAST = 4.0, 3.0
"""Seconds until what is under way is abandoned, and from then until the process ends."""


class Abandoned(KeyboardInterrupt):
    """A stop was asked for, and what is under way takes too long."""


class Stop:
    """Whether a run is asked to stop; what must not be broken off is `held`."""

    def __init__(self) -> None:
        self.requested = False
        self._overdue = self._holding = False
        self._writing, self._over = threading.Lock(), threading.Event()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a write finish: it is abandoned after it, not in it."""
        with self._writing:
            self._holding = True
            try:
                yield
            finally:
                self._holding = False
        self._abandon_if_overdue()

    def _abandon_if_overdue(self) -> None:
        if self._overdue and not self._holding:
            self._overdue = False
            raise Abandoned

    def _heard(self, number: int, frame: Any) -> None:
        """Take a signal, in the main thread."""
        if self._overdue:
            self._abandon_if_overdue()
        elif self.requested:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.requested = True

    def _watch(self, signals: socket.socket) -> None:
        """Wait for a signal, then see to it that the run ends, in a thread of its own."""
        number = 0
        while number not in SIGNALS:
            told = signals.recv(1)
            if not told:
                return
            number = told[0]
        if self._over.wait(GRACE):
            return
        self._overdue = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        while not self._over.wait(LAST):
            if self._writing.acquire(blocking=False):
                _end_process(number)


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Let Ctrl-C (or SIGTERM) end the run soon, saved; a second one at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    told, tells = socket.socketpair()
    tells.setblocking(False)
    # Written to as the signal arrives, even where native code keeps Python from taking it.
    waked = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    watch = threading.Thread(target=stop._watch, args=(told,), daemon=True)
    watch.start()
    _before.update(before)
    for number in before:
        signal.signal(number, stop._heard)
    try:
        yield stop
    finally:
        stop._holding = True  # Nothing is left to abandon.
        stop._over.set()
        signal.set_wakeup_fd(waked)
        tells.shutdown(socket.SHUT_WR)  # Processes that were started meanwhile hold it too.
        tells.close()
        watch.join()
        told.close()
        _before.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


_before: dict[int, Any] = {}
"""What the signals did before the run that is under way."""


def _hold_back() -> None:
    if _before:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let_through() -> None:
    if _before:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _forget_in_child() -> None:
    """Let a forked process take signals for itself, and tell the run nothing of them."""
    if not _before:
        return
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            signal.signal(number, handler)
    _let_through()


os.register_at_fork(
    before=_hold_back, after_in_parent=_let_through, after_in_child=_forget_in_child
)


def _end_process(number: int) -> None:
    for child in multiprocessing.active_children():
        child.kill()
    name = signal.Signals(number).name
    line = f"isobatch: {name}: ended within what did not stop; the last checkpoint is intact\n"
    os.write(2, line.encode())
    os._exit(128 + number)
