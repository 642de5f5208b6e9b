"""Files as strangers may have left them: written whole, read with care, no link followed.

A file is written beside under a random name, flushed and renamed, so that it is there whole or not
at all. Names are looked up in a directory that was opened once; a symbolic link among them is never
followed, neither to read nor to write nor to delete, and only regular files are read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from isobatch.errors import DamagedFile, UserError, is_disk_full

MOST_TEXT = 16 * 2**20
"""Bytes of a recipe, study or other text that a person writes."""
MOST_ROWS = 2**31
"""Bytes of a file of rows."""
PIECE = 1 << 20
"""Bytes that large files are read by."""
Mark = dict[str, Any]
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.new")
"""A file that was being written when its process was killed."""


class Folder:
    """A directory, opened once; names in it are looked up in what was opened."""

    def __init__(self, path: str | Path, *, inside: Folder | None = None) -> None:
        """Open `path`, which the user named; or, `inside` another, a directory that is no link."""
        self.path = Path(path) if inside is None else inside.path / path
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if inside is None:
            self._fd = os.open(path, flags)
            return
        try:
            self._fd = os.open(path, flags | os.O_NOFOLLOW, dir_fd=inside._fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise DamagedFile(f"{self.path} is not a directory of its own") from None
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
            self._fd = -1

    def folder(self, name: str, make: bool = False) -> Folder:
        """Open a directory in this one, made where there is none and `make` says so."""
        if make and not self.has(name):
            os.mkdir(name, dir_fd=self._fd)
            os.fsync(self._fd)
        return Folder(name, inside=self)

    def has(self, name: str) -> bool:
        """Say whether there is anything of that name."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        return sorted(os.listdir(self._fd))

    def read(self, name: str, most: int = MOST_ROWS) -> bytes:
        """Return the bytes of a regular file of at most `most`."""
        path = self.path / name
        return _content(path, _opened(path, name, os.O_RDONLY, self._fd), most)

    def reading(self, name: str) -> BinaryIO:
        """Open a regular file to read a piece at a time."""
        return os.fdopen(_opened(self.path / name, name, os.O_RDONLY, self._fd), "rb")

    def truncate(self, name: str, size: int) -> None:
        """Cut a file to its first `size` bytes."""
        descriptor = _opened(self.path / name, name, os.O_WRONLY, self._fd)
        try:
            os.ftruncate(descriptor, min(size, os.fstat(descriptor).st_size))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def tail(self, name: str, most: int) -> bytes:
        """Return the last bytes of a regular file, at most `most`."""
        with self.reading(name) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most))
            return file.read(most)

    def write(self, name: str, content: bytes) -> None:
        """Write a file: there whole, or, whatever happens, as it was."""
        with self.replacing(name) as file:
            file.write(content)

    @contextmanager
    def replacing(self, name: str) -> Iterator[BinaryIO]:
        """Give a file to write to that takes the place of `name` once all is written."""
        beside = f".{name[:200]}.{secrets.token_hex(8)}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(beside, flags, 0o644, dir_fd=self._fd)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            self.remove(beside)
            raise
        os.fsync(self._fd)

    def append_to(self, name: str) -> BinaryIO:
        """Open a file to write at its end."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return os.fdopen(_opened(self.path / name, name, flags, self._fd), "ab")

    def lock_file(self, name: str) -> BinaryIO:
        """Open a file to lock; what it holds stays."""
        flags = os.O_RDWR | os.O_CREAT
        return os.fdopen(_opened(self.path / name, name, flags, self._fd), "r+b", buffering=0)

    def remove(self, name: str) -> None:
        """Remove a file, or the link itself, where there is one."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name in the same directory."""
        os.rename(name, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def touch(self, name: str) -> None:
        """Set a file's time to now."""
        os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def changed(self, name: str) -> float:
        """Return when a file was last changed or touched, by the disk's clock."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mtime

    def move(self, name: str, folder: Folder) -> None:
        """Move a file, directory or link itself into another directory."""
        os.rename(name, name, src_dir_fd=self._fd, dst_dir_fd=folder._fd)

    def sync(self) -> None:
        """Have its names on disk."""
        os.fsync(self._fd)

    def sweep(self) -> None:
        """Remove what processes that were killed had begun to write."""
        for name in self.names():
            if UNFINISHED.fullmatch(name):
                self.remove(name)


class Growing:
    """A file that only grows, written at its end.

    A mark says how far it was, and by a hash that nothing before has changed since:
    {"bytes": 4812, "sha256": "..."}.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self.path = folder.path / name
        self.name = name
        self.bytes = 0
        self._folder = folder
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()

    def append(self, content: bytes) -> None:
        """Add to the end; a process that dies after this has written it."""
        if self._file is None:
            self._file = self._folder.append_to(self.name)
        self._file.write(content)
        self._file.flush()
        self._digest.update(content)
        self.bytes += len(content)

    def sync(self) -> None:
        """Have what was written on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def mark(self) -> Mark:
        """Return how far the file has come, and a hash of all of it."""
        return {"bytes": self.bytes, "sha256": self._digest.hexdigest()}

    def pieces(self, size: int) -> Iterator[bytes]:
        """Give the first `size` bytes of the file, a piece at a time; none where there is none."""
        if not self._folder.has(self.name):
            return
        with self._folder.reading(self.name) as file:
            while size and (piece := file.read(min(PIECE, size))):
                size -= len(piece)
                yield piece

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on, fewer where there are no more."""
        with self._folder.reading(self.name) as file:
            file.seek(start)
            return file.read(size)

    def remove(self) -> None:
        """Remove the file, and begin anew."""
        self.close()
        self._folder.remove(self.name)
        self._digest, self.bytes = hashlib.sha256(), 0

    def refuse_other(self, mark: Mark) -> None:
        """Raise `DamagedFile` unless the file begins with what it held at `mark`."""
        digest, size = hashlib.sha256(), 0
        for piece in self.pieces(mark["bytes"]):
            digest.update(piece)
            size += len(piece)
        if size < mark["bytes"]:
            raise DamagedFile(f"{self.path} has {size:,} of the {mark['bytes']:,} bytes saved")
        if digest.hexdigest() != mark["sha256"]:
            raise DamagedFile(f"{self.path} was changed: it is not what was saved")

    def cut(self, mark: Mark) -> None:
        """Go on from `mark`: drop what was written after it."""
        self.close()
        if self._folder.has(self.name):
            self._folder.truncate(self.name, mark["bytes"])
        self._digest, self.bytes = hashlib.sha256(), 0
        for piece in self.pieces(mark["bytes"]):
            self._digest.update(piece)
            self.bytes += len(piece)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read(path: str | Path, most: int = MOST_TEXT) -> bytes:
    """Return the bytes of a file that the user named: regular, or a link to such a one."""
    return _content(Path(path), _opened(Path(path), path, os.O_RDONLY, None), most)


def read_text(path: str | Path, what: str = "", most: int = MOST_TEXT) -> str:
    """Return the UTF-8 text of a file that the user named; `what` says what it is in an error."""
    named = f"{what} {path}" if what else str(path)
    try:
        return read(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {named}: it is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"cannot read {named}: {error.strerror}") from None


def refuse_links(root: Path, path: Path) -> None:
    """Raise `DamagedFile` where a directory on the way from `root` to `path` is a link."""
    for part in (path, *path.parents):
        if part == root:
            return
        if part.is_symlink():
            raise DamagedFile(f"{part} is a symbolic link: it is not followed")


def write(path: str | Path, content: bytes) -> None:
    """Write a file that the user named: there whole, or as it was."""
    path = Path(path)
    with Folder(path.parent) as folder:
        folder.write(path.name, content)


def save(path: str | Path, content: bytes, what: str = "") -> None:
    """Write a file that the user named, or say in a line why not; `what` says what it is."""
    with saving(path, what):
        write(path, content)


@contextmanager
def saving(path: str | Path, what: str = "") -> Iterator[None]:
    """Say in a line why a file cannot be written, where the block cannot."""
    named = f"{what} {path}" if what else str(path)
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if is_disk_full(error) else error.strerror
        raise UserError(f"cannot write {named}: {reason}") from None


def _opened(path: Path, name: str | Path, flags: int, directory: int | None) -> int:
    """Open a regular file. One in a folder that was opened must not be a link."""
    # A FIFO would block until its other end opens.
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if directory is not None else 0)
    try:
        descriptor = os.open(name, flags, 0o644, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP and directory is not None:
            raise DamagedFile(f"{path} is a symbolic link: it is not followed") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise DamagedFile(f"{path} is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedFile(f"{path} is not a regular file")
    return descriptor


def _content(path: Path, descriptor: int, most: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise DamagedFile(f"{path} has {size:,} bytes, more than the {most:,} that are read")
        return file.read(size)
