"""A program for workers to run: what the tests of `isobatch.workers` start instead of a training.

`python -m crew TASK FOLDER`. Each worker leaves files named RESTARTS-RANK... in the folder.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from isobatch.run.interrupt import stop_requests
from isobatch.workers.heartbeat import Heartbeat
from isobatch.workers.membership import BROKEN, Membership, PeerLost, join, membership

SILENCE, INTERVAL = 2.5, 0.25


def exchange(member: Membership, folder: Path) -> int:
    """Exchange bytes of equal and of unequal lengths, and wait to be looked at."""
    group = join(member)
    own = torch.arange(5, dtype=torch.uint8) + 10 * group.rank
    equal = [each.tolist() for each in group.gather_bytes(own)]
    unequal = group.gather_objects(b"ab" * group.rank * 70_000)
    empty = group.gather_objects(b"")
    said = group.broadcast(b"from 0" if group.rank == 0 else None)
    nothing = group.broadcast(b"" if group.rank == 0 else None)
    group.set_timeout(1.5)
    waited = None
    if group.rank == 0:  # The others do not come to this one.
        began = time.monotonic()
        try:
            group.gather_bytes(own)
        except PeerLost as error:
            waited = [time.monotonic() - began, str(error)]
    leave(
        member,
        folder,
        equal=equal,
        unequal=[len(each) for each in unequal],
        same=unequal == [b"ab" * rank * 70_000 for rank in range(group.size)],
        empty=[each.decode() for each in empty],
        said=said.decode(),
        nothing=nothing.decode(),
        waited=waited,
        peers=[str(peer) for peer in group.peers],
        pid=os.getpid(),
    )
    while not (folder / "seen").exists():
        time.sleep(0.02)
    group.close()
    return 0


def steady(member: Membership, folder: Path) -> int:
    """Exchange a byte for as long as no worker is asked to stop, nor to finish."""
    group = join(member)
    with Heartbeat(group, silence=SILENCE, interval=INTERVAL), stop_requests() as stop:
        asked, finish, count = False, False, 0
        while not (asked or finish):
            own = torch.tensor([stop.requested, (folder / "finish").exists()]).byte()
            told = torch.stack(group.gather_bytes(own))
            asked, finish = (bool(each) for each in told.any(0))
            if count == 0:
                leave(member, folder, pid=os.getpid(), time=time.time())
            count += 1
            time.sleep(0.01)
        if finish and group.rank == 0:
            time.sleep(SILENCE + 1)  # Those that are done are not missed.
    group.close()
    if asked:
        (folder / f"saved-{group.rank}").touch()
    return 130 if asked else 0


def hang(member: Membership, folder: Path) -> int:
    """Keep the others waiting."""
    group = join(member)
    with Heartbeat(group, silence=SILENCE, interval=INTERVAL, patience=1.5):
        if member.rank == 1:
            oversleep()
        group.gather_bytes(torch.zeros(1).byte())
    return 0


def oversleep() -> None:
    time.sleep(100)


def leave(member: Membership, folder: Path, **found: object) -> None:
    path = folder / f"{member.restarts}-{member.rank}.json"
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)


TASKS = (exchange, steady, hang)


def main() -> int:
    member = membership()
    assert member is not None
    task = {each.__name__: each for each in TASKS}[sys.argv[1]]
    try:
        return task(member, Path(sys.argv[2]))
    except PeerLost as error:
        print(f"isobatch: {error}", file=sys.stderr)
        return BROKEN


if __name__ == "__main__":
    sys.exit(main())
