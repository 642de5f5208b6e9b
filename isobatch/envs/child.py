"""The process of one supervised environment: it makes it, steps it and says what went wrong.

Run as a script, and so without the package: a process has what its environment needs, no more.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1
"""Linux: the signal a process gets when its parent ends."""


def depend_on(parent: int) -> None:
    """End with the parent, whatever ends it; and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # It ended before the kernel was told.


def serve(connection: Connection, make: Callable[[], Any]) -> None:
    """Answer (True, what was asked for), or (False, (type, message, traceback)) of an exception."""
    env: Any = None
    command, value = "make", None
    while command != "close":
        try:
            if command == "make":
                env = make()
                answer = _described(env)
            elif command == "reset":
                answer = _plain(env.reset(seed=value)[0])
            else:
                observation, *rest = env.step(value)
                answer = (_plain(observation), *rest[:3])
            connection.send((True, answer))
        except BaseException as error:
            told = (type(error).__name__, str(error), traceback.format_exc())
            connection.send((False, told))
        command, value = connection.recv()
    if env is not None:
        env.close()


def _described(env: Any) -> tuple[str, Any, Any]:
    """Return what an environment is, and its spaces."""
    if hasattr(env, "num_envs"):
        return "a vector", None, None
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        return type(env).__name__, None, None
    return "", env.observation_space, env.action_space


def _plain(observation: Any) -> Any:
    """Return arrays, whatever they were kept in."""
    if isinstance(observation, dict):
        return {key: _plain(value) for key, value in observation.items()}
    import numpy

    return numpy.asarray(observation)


def main() -> None:
    """Be a child: child.py DESCRIPTOR PARENT."""
    depend_on(int(sys.argv[2]))
    connection = Connection(int(sys.argv[1]))
    try:
        sys.path[:] = connection.recv()
        serve(connection, lambda: pickle.loads(connection.recv_bytes())())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # The parent has gone, or has no more use for it.


if __name__ == "__main__":
    main()
