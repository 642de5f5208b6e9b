"""Workers on this machine: started together, restarted together, and ended with this process.

torch's elastic agent runs here, in the process that the user started. It is given a place for
workers to meet that listens on loopback alone, and processes that say in one line how they ended.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from isobatch.errors import UserError, printable
from isobatch.parent import ONE_THREAD, STOP_SECONDS
from isobatch.text import counted, say
from isobatch.workers.membership import BROKEN, LOST, Peer, serve

LOOPBACK = "127.0.0.1"
USER_ERROR = 2
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a worker that was asked to stop, and did."""
MONITOR_SECONDS = 0.1
SETTLE_SECONDS = 1.0
"""How long workers may end by themselves after the first failed, before they are asked to."""
LEAVE_SECONDS = 10.0
"""And from then until they are killed: `run.interrupt` takes 7 s where nothing is written."""
LINES = 30
"""How much is shown of what a worker wrote before it failed."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


def launch(
    workers: int, arguments: list[str], max_restarts: int, *, module: str = "isobatch"
) -> int:
    """Run `python -m module arguments` as so many workers of this machine; return an exit code.

    Where a worker fails, all are started again, at most `max_restarts` times; a mistake of the
    user's (code 2) is not tried again. Ctrl-C or SIGTERM is passed on to each worker once; a second
    one kills them. The exit code is 0, that of the worker that failed, or 128 + the number of the
    signal. To be called in the main thread, which the signals come to.
    """
    if workers < 1:
        raise UserError(f"there must be at least 1 worker, got {workers}")
    place = LoopbackRendezvous()
    spec = WorkerSpec(
        role="worker",
        local_world_size=workers,
        rdzv_handler=place,
        entrypoint=sys.executable,
        args=("-m", "isobatch.workers.child", str(os.getpid()), module, *arguments),
        max_restarts=max_restarts,
        monitor_interval=MONITOR_SECONDS,
    )
    agent = Agent(spec)
    with _quiet_torch(), agent.signals_passed_on():
        agent.run()
    return agent.exit_code


class LoopbackRendezvous(RendezvousHandler):
    """One machine's workers meet at a store of this process, which listens on loopback alone.

    torch's own handlers serve stores on every interface.
    """

    def __init__(self) -> None:
        self._store = serve(LOOPBACK)
        self._run_id = secrets.token_hex(8)
        self._round = 0

    def get_backend(self) -> str:
        """Return the handler's name."""
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of this process's store, and serve none."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the place to meet: there is no other machine to wait for."""
        self._round += 1
        own = PrefixStore(f"agent/{self._round}", self._store)
        return RendezvousInfo(own, 0, 1, RendezvousStoreInfo(LOOPBACK, self._store.port))

    def is_closed(self) -> bool:
        """Say whether nobody may join: never."""
        return False

    def set_closed(self) -> None:
        """Nothing is to be closed."""

    def num_nodes_waiting(self) -> int:
        """Return how many machines wait to join: none."""
        return 0

    def get_run_id(self) -> str:
        """Return the name of this launch."""
        return self._run_id

    def shutdown(self) -> bool:
        """Nothing is to be shut down: the store ends with its process."""
        return True


class Process:
    """A worker's process. The first prints as this process does, the others when they fail."""

    def __init__(self, rank: int, command: list[str], environment: dict[str, str]) -> None:
        self._errors: IO[bytes] | None = None if rank == 0 else tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is the agent's to pass on.
        )
        self.peer = Peer(rank, socket.gethostname(), self._popen.pid)
        self.rank, self.told = rank, False

    def code(self) -> int | None:
        """Return its exit code, negative where a signal killed it, or None while it runs."""
        known = self._popen.returncode is not None
        code = self._popen.poll()
        if code and not known:
            self._send(signal.SIGKILL)  # What it has started and did not end.
        return code

    def tell(self, number: int) -> None:
        """Send it a signal, once."""
        if not self.told:
            self.told = True
            self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill it with all it has started, where it still runs."""
        if self.code() is None:
            self._send(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, and wait until it has ended."""
        self.kill()
        self._popen.wait()

    def pause(self) -> None:
        """Stop it with all it has started, until `go_on`."""
        if self.code() is None:
            self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        if self.code() is None:
            self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)

    def last_lines(self) -> list[str]:
        """Return the end of what it wrote to stderr, where that was not shown."""
        if self._errors is None:
            return []
        self._errors.seek(0)
        text = b"".join(deque(self._errors, LINES)).decode(errors="replace")
        return [printable(line) for line in text.splitlines() if line.strip()]

    def close(self) -> None:
        """End it, where it still runs, and forget what it wrote."""
        self.end()
        if self._errors is not None:
            self._errors.close()


class Agent(SimpleElasticAgent):
    """torch's agent over processes of this machine."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self._processes: list[Process] = []
        self.exit_code = 0
        self._asked: int | None = None
        self._deadline = 0.0
        self._blamed: Process | None = None

    @contextmanager
    def signals_passed_on(self) -> Iterator[None]:
        """Pass each signal on to the workers; a second one kills them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # As under nohup.
                signal.signal(number, self._pause if number == signal.SIGTSTP else self._ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self._asked is not None:
            for process in self._processes:
                process.kill()  # Whoever was interrupted may hold the lock that waiting takes.
            return
        self._asked, self._deadline = number, time.monotonic() + STOP_SECONDS
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for process in self._processes:
            # A closed terminal is as good a reason to save and stop as any.
            process.tell(signal.SIGTERM if number == signal.SIGHUP else number)

    def _pause(self, number: int, frame: Any) -> None:
        """Pause with the workers: while the store does not answer, they take it for lost."""
        for process in self._processes:
            process.pause()
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in self._processes:
            process.go_on()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        restarts = spec.max_restarts - self._remaining_restarts
        if restarts:
            which = f"all {spec.local_world_size} workers" if spec.local_world_size > 1 else "it"
            _say(f"starting {which} again, restart {restarts} of {spec.max_restarts}")
        for process in self._processes:
            process.close()
        self._processes = []
        for worker in worker_group.workers:
            told = {
                "RANK": worker.global_rank,
                "WORLD_SIZE": worker.world_size,
                "LOCAL_RANK": worker.local_rank,
                "LOCAL_WORLD_SIZE": spec.local_world_size,
                "GROUP_RANK": worker_group.group_rank,
                "GROUP_WORLD_SIZE": worker_group.group_world_size,
                "MASTER_ADDR": worker_group.master_addr,
                "MASTER_PORT": worker_group.master_port,
                "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
                "TORCHELASTIC_RESTART_COUNT": restarts,
                "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
                "TORCHELASTIC_USE_AGENT_STORE": spec.rdzv_handler.use_agent_store,
            }
            # torchrun too gives a worker one thread, unless told otherwise. torch's C++ warns of
            # every connection that another worker's end closes.
            environment = ONE_THREAD | {"TORCH_CPP_LOG_LEVEL": "ERROR"} | os.environ
            environment |= {name: str(value) for name, value in told.items()}
            command = [str(spec.entrypoint), *(str(word) for word in spec.args)]
            self._processes.append(Process(worker.global_rank, command, environment))
        if self._asked is not None:  # While they were started.
            self._pass_on(self._asked)
        return {process.rank: process.peer.pid for process in self._processes}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        for process in self._processes:
            process.end()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        for process in self._processes:
            process.close()
        self._processes = []

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = self._codes()
        if any(codes.values()) and self._asked is None:
            self._let_end()
            codes = self._codes()
        elif None in codes.values():
            if self._asked is not None:
                self._hurry(codes)
            return RunResult(WorkerState.HEALTHY)
        if not any(codes.values()):
            self.exit_code = 0
            return RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(codes))
        self._take_down(codes)
        return RunResult(WorkerState.FAILED)

    def _codes(self) -> dict[int, int | None]:
        return {process.rank: process.code() for process in self._processes}

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        # torch's own asks a name server for this machine's name, every time. Nobody reads them.
        return Event(f"torchelastic.worker.status.{state}", source)

    def _hurry(self, codes: dict[int, int | None]) -> None:
        """Kill what does not stop though asked to: it may be paused, or hang."""
        now = time.monotonic()
        if codes[0] is not None:  # It writes what is saved; the others have nothing to finish.
            self._deadline = min(self._deadline, now + LEAVE_SECONDS)
        if now > self._deadline:
            for process in self._processes:
                process.end()

    def _let_end(self) -> None:
        """Let the others end: by themselves, then asked to, then killed."""
        self._wait(SETTLE_SECONDS)
        self._blamed = _first_cause(self._processes)
        if self._blamed.code() != LOST:  # Else what still runs is what they lost.
            for process in self._processes:
                if process.code() is None:
                    process.tell(signal.SIGTERM)
            self._wait(LEAVE_SECONDS)
        for process in self._processes:
            process.end()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and None in self._codes().values():
            time.sleep(0.02)

    def _take_down(self, codes: dict[int, int | None]) -> None:
        """Say how the workers failed, and note whether they may be started again."""
        if self._asked is not None:
            self.exit_code = 128 + self._asked
            self._remaining_restarts = 0
            return
        blamed = self._blamed or _first_cause(self._processes)
        code = blamed.code() or 0
        self.exit_code = code if code > 0 else 128 - code
        if code in STOPPED:
            self._remaining_restarts = 0
        elif code == USER_ERROR:
            self._remaining_restarts = 0
            # All make the same mistake, and worker 0 has said so.
            if codes[0] != USER_ERROR:
                _show(blamed.last_lines()[-1:] or [f"isobatch: {blamed.peer}: an error"])
        elif code in (LOST, BROKEN):
            _show(blamed.last_lines()[-1:])
        else:
            if code not in (-signal.SIGKILL, -signal.SIGTERM):
                _show(blamed.last_lines())
            _say(f"{blamed.peer} {_how(code)}")
        if self._remaining_restarts == 0 and code not in (*STOPPED, USER_ERROR):
            restarts = self._worker_group.spec.max_restarts
            _say(f"the workers are not started again, after {counted(restarts, 'restart')}")


def _first_cause(processes: list[Process]) -> Process:
    """Return the worker whose end made the others end.

    Others fail of it at once, by a broken exchange; what that does not explain goes first: a
    signal, a mistake of the user's, any other end. Of those that name another, worker 0: it prints.
    """

    def order(process: Process) -> int:
        code = process.code()
        if not code:
            return 6
        if code < 0:
            return 0
        return {USER_ERROR: 1, LOST: 4, BROKEN: 5}.get(code, 3 if code in STOPPED else 2)

    return min(processes, key=order)  # The first of several: they are in order of rank.


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def _say(line: str) -> None:
    _show([f"isobatch: {line}"])


def _show(lines: list[str]) -> None:
    for line in lines:
        say(line, error=True)


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Keep torch's agent from logging: what users are to know is said here, in a line."""
    names = [
        name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")
    ]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
