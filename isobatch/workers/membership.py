"""Which of several workers this process is, and the group that it joins: torchrun's environment.

torchrun, and `agent.launch`, tell a worker who it is by environment variables. The workers meet at
a key-value store, torch's TCPStore, and exchange bytes by torch.distributed's collectives.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from isobatch.errors import UserError, one_line

LOST, BROKEN = 75, 76
"""Exit codes of a worker that is well, and ends because another is lost: it has named that one, or
knows of a broken exchange alone (`PeerLost`)."""
TIMEOUT = 1800.0
"""Seconds that an exchange may take before any iteration was measured: longer than the watch."""
POLL = 0.02
SIOCGIFADDR = 0x8915
"""Of Linux's ioctl: the IPv4 address of an interface."""


class PeerLost(RuntimeError):
    """An exchange failed because another worker is gone, or does not answer."""


@dataclass(frozen=True)
class Membership:
    """This process as torchrun names it: worker `rank` of `size`, which meet at host and port."""

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    run_id: str
    restarts: int
    """How often all workers have been started again after a failure."""
    serves: bool = False
    """Whether the store is this process's to serve; else the agent serves it."""


@dataclass(frozen=True)
class Peer:
    """A worker as messages name it."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"worker {self.rank} (pid {self.pid} on {self.host})"


def membership(environment: Mapping[str, str] = os.environ) -> Membership | None:
    """Return which worker this process is, or None where neither torchrun nor `launch` made it."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    rank = _number(environment, "RANK")
    found = Membership(
        rank=rank,
        size=_number(environment, "WORLD_SIZE", least=1),
        local_rank=_number(environment, "LOCAL_RANK"),
        host=_value(environment, "MASTER_ADDR"),
        port=_number(environment, "MASTER_PORT"),
        run_id=environment["TORCHELASTIC_RUN_ID"],
        restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT"),
        serves=rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
    )
    if found.rank >= found.size:
        raise UserError(f"RANK is {found.rank}, of WORLD_SIZE {found.size}: torchrun sets both")
    return found


def _value(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise UserError(f"{name} is not set, though TORCHELASTIC_RUN_ID is: torchrun sets both")
    return environment[name]


def _number(environment: Mapping[str, str], name: str, least: int = 0) -> int:
    text = _value(environment, name)
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise UserError(f"{name} must be a whole number of at least {least}, got {text!r}")
    return int(text)


def is_loopback(host: str) -> bool:
    """Say whether a host name or address is this machine's own, which no other machine reaches."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address alone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise _no_place(host, port, error.strerror or str(error)) from None
    return listening


def _no_place(host: str, port: int, why: str) -> UserError:
    return UserError(f"the workers cannot meet at {host}, port {port}: {why}")


def serve(host: str, port: int = 0) -> TCPStore:
    """Return the store that workers meet at, served by a thread of this process.

    On loopback it listens there alone, else on every interface, as torch's TCPStore does unless it
    is given a socket: what other machines call this one may be no address of its own. Port 0 takes
    a free one.
    """
    given = None
    if is_loopback(host):
        listening = _listen(host, port)
        port, given = listening.getsockname()[1], listening.detach()
    try:
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=given)
    except RuntimeError as error:
        raise _no_place(host, port, _first_line(error)) from None


def join(
    member: Membership, *, backend: str = "gloo", timeout: float = TIMEOUT, patience: float = 300.0
) -> Group:
    """Meet the other workers and return the group of all.

    `timeout` is how many seconds an exchange may take, `patience` how many to wait for workers that
    are still to come. With a loopback address nothing listens on any other interface. To exchange
    CUDA tensors too, ask for the backend "cpu:gloo,cuda:nccl".
    """
    _choose_interface(member.host, member.port)
    server = serve(member.host, member.port) if member.serves else None

    def connect(seconds: float) -> Store:
        return TCPStore(
            member.host,
            member.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
        )

    try:
        meeting = connect(patience)
    except RuntimeError as error:
        raise UserError(
            f"worker {member.rank} finds no store at {member.host}, port {member.port}: "
            f"{_first_line(error)}"
        ) from None
    with _exchanging():
        prefix, peers = _meet(meeting, member, patience)
    store = PrefixStore(prefix, meeting)
    with _exchanging():
        dist.init_process_group(
            backend,
            store=store,
            rank=member.rank,
            world_size=member.size,
            timeout=timedelta(seconds=timeout),
        )
    return Group(
        member, peers, store, lambda seconds: PrefixStore(prefix, connect(seconds)), server
    )


INTERFACE = "GLOO_SOCKET_IFNAME"


def _choose_interface(host: str, port: int) -> None:
    """Let gloo listen on the interface by which the workers' meeting place is reached.

    On its own it takes that of this machine's name, which is often loopback, or another one. A
    choice of the user's stands, but where all are on this machine.
    """
    if is_loopback(host):
        found = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    else:
        found = os.environ.get(INTERFACE) or _interface_to(host, port)
    if found is not None:
        os.environ[INTERFACE] = found


def _interface_to(host: str, port: int) -> str | None:
    """Return the interface by which a host is reached, None where that cannot be told."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, port))  # Sends nothing.
        address = asking.getsockname()[0]
        for _, name in socket.if_nameindex():
            if not is_loopback(address) and _address_of(name, asking) == address:
                return name
    return None


def _address_of(interface: str, asking: socket.socket) -> str | None:
    with suppress(OSError):  # It may have none.
        request = struct.pack("256s", interface.encode())
        return socket.inet_ntoa(fcntl.ioctl(asking, SIOCGIFADDR, request)[20:24])
    return None


def _meet(store: Store, member: Membership, patience: float) -> tuple[str, list[Peer]]:
    """Agree on a prefix of keys for this generation of workers, and learn who they are.

    The store outlives workers: after a restart it holds the keys of those before, and after a
    change of membership not even the restart count is another. So each worker brings a word of its
    own, and worker 0, which names the generation, answers to that word.
    """
    deadline = time.monotonic() + patience
    meeting = PrefixStore(f"isobatch/{member.run_id}", store)
    word, host = secrets.token_hex(8), socket.gethostname()
    meeting.set(f"here/{member.rank}", json.dumps([word]))
    if member.rank == 0:
        _name_generation(meeting, member.size, deadline)
    _wait(meeting, [f"generation/{word}"], deadline, "worker 0")
    name = meeting.get(f"generation/{word}").decode()
    generation = PrefixStore(name, meeting)
    generation.set(f"joined/{member.rank}", json.dumps([member.rank, host, os.getpid()]))
    keys = [f"joined/{rank}" for rank in range(member.size)]
    _wait(generation, keys, deadline, "the others")
    peers = [Peer(*json.loads(found)) for found in generation.multi_get(keys)]
    return f"isobatch/{member.run_id}/{name}", peers


def _name_generation(meeting: Store, size: int, deadline: float) -> None:
    """Answer every word that comes, a dead worker's too, until all have joined."""
    name = secrets.token_hex(8)
    generation = PrefixStore(name, meeting)
    others = list(range(1, size))
    answered: set[str] = set()
    while True:
        for rank in range(size):
            if meeting.check([f"here/{rank}"]):
                word = json.loads(meeting.get(f"here/{rank}"))[0]
                if word not in answered:
                    meeting.set(f"generation/{word}", name)
                    answered.add(word)
        missing = [rank for rank in others if not generation.check([f"joined/{rank}"])]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise PeerLost(f"{len(missing)} of {size} workers have not come: {missing}")
        time.sleep(POLL)


def _wait(store: Store, keys: list[str], deadline: float, whom: str) -> None:
    # By looking again: a store's own wait prints warnings as it times out.
    while not store.check(keys):
        if time.monotonic() > deadline:
            raise PeerLost(f"waited for {whom} in vain")
        time.sleep(POLL)


class Group:
    """All workers of a run, as one of them sees them. Every worker must call the same exchanges."""

    def __init__(
        self,
        member: Membership,
        peers: list[Peer],
        store: Store,
        connect: Callable[[float], Store],
        server: TCPStore | None = None,
    ) -> None:
        self.member, self.peers, self.store = member, peers, store
        self.rank, self.size = member.rank, member.size
        self.connect = connect
        """Opens a connection of one's own to the store, whose calls take so many seconds at most.

        A connection serves one call at a time, and `store` is the exchanges'.
        """
        self.exchanges = 0
        """How many exchanges this worker has come to; one that has come to fewer is waited for."""
        self._server = server

    def set_timeout(self, seconds: float) -> None:
        """Let an exchange take this long from now on."""
        _world().set_timeout(timedelta(seconds=seconds))

    def gather_bytes(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Return every worker's uint8 tensor, by rank. All have the same length."""
        if own.dtype != torch.uint8 or own.dim() != 1:
            raise ValueError(f"a vector of uint8 is exchanged, not {own.dtype} {list(own.shape)}")
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._exchange():
            dist.all_gather(found, own.contiguous())
        return found

    def gather_objects(self, own: bytes) -> list[bytes]:
        """Return every worker's bytes, by rank, of any lengths: lengths first, then padded."""
        lengths = [int(each) for each in self._numbers(len(own))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(own)] = _tensor(own)
        if not len(padded):
            return [b""] * self.size
        found = self.gather_bytes(padded)
        return [
            each[:length].numpy().tobytes() for each, length in zip(found, lengths, strict=True)
        ]

    def broadcast(self, own: bytes | None) -> bytes:
        """Return worker 0's bytes; what the others give is not looked at."""
        if self.rank == 0 and own is None:
            raise ValueError("worker 0 must give what is broadcast")
        length = torch.tensor([len(own or b"") if self.rank == 0 else 0])
        with self._exchange():
            dist.broadcast(length, 0)
        found = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0:
            found[:] = _tensor(own or b"")
        if len(found):
            with self._exchange():
                dist.broadcast(found, 0)
        return found.numpy().tobytes()

    def close(self, patience: float = 10.0) -> None:
        """Leave the group. A worker that serves the store stays until the others have left."""
        with suppress(RuntimeError):  # The store's host may be gone, at the end.
            self.store.set(f"left/{self.rank}", "")
            if self._server is not None:
                everyone = [f"left/{rank}" for rank in range(self.size)]
                _wait(self.store, everyone, time.monotonic() + patience, "the others")
        if dist.is_initialized():
            dist.destroy_process_group()

    def _numbers(self, own: int) -> torch.Tensor:
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._exchange():
            dist.all_gather(found, torch.tensor([own]))
        return torch.cat(found)

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        self.exchanges += 1
        with _exchanging():
            yield


@contextmanager
def _exchanging() -> Iterator[None]:
    """Say in a line that an exchange failed: torch's errors are pages long."""
    try:
        yield
    except PeerLost:
        raise
    except RuntimeError as error:
        raise PeerLost(f"an exchange between workers failed: {_first_line(error)}") from None


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None, "the group is closed"
    return world


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0).byte()


def _first_line(error: Exception) -> str:
    """Return what torch says between the place in its source and its advice or stack of calls."""
    lines = re.sub(r"^\[/\S*\] ", "", str(error).strip()).splitlines()
    return one_line(lines[0] if lines else type(error).__name__).split(". ")[0]
