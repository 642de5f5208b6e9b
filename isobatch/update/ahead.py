"""Functions of tensors, compiled ahead of time and kept for the next run.

Compiling takes about twenty seconds, loading what was compiled some milliseconds: PyTorch's
compiler is not even imported. What is kept is machine code, so it is kept where only its owner can
write.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import isobatch
from isobatch.models.layers import traced

FOLDER = "ISOBATCH_CACHE"
"""Environment variable: where compiled functions are kept instead of the user's cache."""
MOST_KEPT = 32
"""Compiled functions that are kept, those last used: 2 MB each."""
SOURCES = ("models", "update", "algos", "losses.py", "objectives.py")
"""What the compiled functions are made of."""

QUICKLY = {
    # In this process: a pool of compiler processes would outlive a short run.
    "compile_threads": 1,
    # The processor's own word for its instructions, instead of compiling three programs to try.
    "cpp.vec_isa_ok": True,
    # Headers compiled for later use take twice as long as the one function here that uses them.
    "aot_inductor.precompile_headers": False,
}
"""How PyTorch's compiler is set: the last two took more than half of a first compilation."""

Function = Callable[..., Sequence[Tensor]]
"""Of tensors; pure."""


class CompilationFailed(RuntimeError):
    """A function could not be compiled on this machine."""


class Ahead:
    """A function of tensors, compiled when it is first called with tensors of these shapes.

    `name` says all that the function depends on beside its arguments and this package's code;
    without one nothing is kept.
    """

    def __init__(self, function: Function, name: str | None) -> None:
        self._function, self._name = function, name
        self._runners: dict[Any, Any] = {}

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Return what the function returns; raise `CompilationFailed` at the first call."""
        shapes = tuple((each.shape, each.dtype) for each in tensors)
        runner = self._runners.get(shapes)
        if runner is None:
            try:
                runner = self._runners[shapes] = _runner(self._function, tensors, self._name)
            except Exception as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
                message = f"the update could not be compiled ({reason})"
                raise CompilationFailed(message) from error
        return runner.boxed_run(list(tensors))


def has_compiler() -> bool:
    """Say whether there is a C++ compiler, which compiling for the CPU needs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)


def kept_in() -> Path | None:
    """Return the folder of compiled functions, made if need be; None where nothing can be kept.

    It must be this user's own and writable by nobody else.
    """
    chosen = os.environ.get(FOLDER)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(chosen) if chosen else home / "isobatch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):
        return None
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or not os.access(folder, os.W_OK):
        return None
    return folder


def _runner(function: Function, tensors: Sequence[Tensor], name: str | None) -> Any:
    folder = None if name is None else kept_in()
    if folder is None:
        with TemporaryDirectory() as scratch:
            return _built(function, tensors, Path(scratch) / "function.pt2")
    shapes = [f"{tuple(each.shape)} {each.dtype} {each.device.type}" for each in tensors]
    path = folder / f"{_digest([str(name), *shapes])}.pt2"
    with _locked(path):  # Of runs begun together one compiles, and the others wait for it.
        if path.exists():
            with suppress(RuntimeError):  # Cut short or damaged: compiled again.
                found = _loaded(path)
                os.utime(path)
                return found
        found = _built(function, tensors, path)
    _forget_old(folder)
    return found


def _built(function: Function, tensors: Sequence[Tensor], path: Path) -> Any:
    """Compile, write to `path` and load."""
    # Seconds to import: only where something is compiled.
    import torch._inductor as inductor
    from torch._inductor import config
    from torch.fx.experimental.proxy_tensor import make_fx

    unfinished = path.with_name(f".{path.stem}-{secrets.token_hex(4)}.pt2")
    with warnings.catch_warnings(), config.patch(QUICKLY), torch.no_grad(), traced():
        warnings.simplefilter("ignore")  # PyTorch's own, about its own insides.
        graph = make_fx(function)(*tensors)
        exported = torch.export.export(graph, tuple(tensors))
        inductor.aoti_compile_and_package(exported, package_path=str(unfinished))
    os.replace(unfinished, path)
    return _loaded(path)


def _loaded(path: Path) -> Any:
    """Load what was compiled; by way of torch._inductor it takes seconds of imports."""
    return torch._C._aoti.AOTIModelPackageLoader(  # pyright: ignore[reportAttributeAccessIssue]
        str(path), "model", False, 1, -1
    )


def _digest(parts: Sequence[str]) -> str:
    """Return a name for what is compiled, another one wherever its machine code may be."""
    machine = [
        torch.__version__,
        platform.platform(),
        torch.backends.cpu.get_cpu_capability(),
        str(torch.get_num_threads()),
        _sources(),
    ]
    return hashlib.sha256("\n".join([*machine, *parts]).encode()).hexdigest()[:32]


@cache
def _sources() -> str:
    """Return a hash of the code that compiled functions are made of."""
    root, found = Path(isobatch.__file__).parent, hashlib.sha256()
    for name in SOURCES:
        for path in sorted((root / name).rglob("*.py")) or [root / name]:
            found.update(path.read_bytes())
    return found.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _forget_old(folder: Path) -> None:
    """Remove what was not used for longest."""
    with suppress(OSError):
        kept = sorted(folder.glob("*.pt2"), key=lambda path: -path.stat().st_mtime)
        for path in kept[MOST_KEPT:]:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
