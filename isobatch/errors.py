"""Errors that are the user's to mend: one line, said before anything is written."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST = 2000
"""Characters of a message."""
MOST_COMPARED = 100
"""Characters of a name whose neighbours are looked for: the time grows with its square."""


class UserError(ValueError):
    """A mistake in a request; its message is one clear line.

    The command line prints it and exits with code 2; in Python it is a `ValueError`. `field` names
    the recipe or study field at fault, if there is one. Control characters are escaped, and very
    long messages are shortened in the middle.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(_shortened(printable(message), LONGEST))
        self.field = field


class DamagedFile(UserError):
    """A file whose content is not what was written."""


@contextmanager
def understanding(what: str) -> Iterator[None]:
    """Report data that do not have the form they were written in as damage, in a line."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as e:
        raise DamagedFile(f"{what} cannot be understood: {type(e).__name__}: {one_line(e)}") from e


class InUse(UserError):
    """Another process is training in the run directory."""


def is_disk_full(error: OSError) -> bool:
    """Say whether an error means that there is no room left to write."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def system_error(error: OSError) -> str:
    """Say in a line what the system refused, and of which file."""
    if is_disk_full(error):
        return "the disk is full; files written so far are intact"
    where = f"{error.filename}: " if error.filename is not None else ""
    return printable(f"{where}{error.strerror}")


def one_line(error: object) -> str:
    """Return an exception's or another message on one line, without control characters."""
    return printable(" ".join(str(error).split()))


def printable(text: str) -> str:
    """Return `text` with control characters spelled out: a terminal would obey them."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def shown(value: object, most: int = 80) -> str:
    """Return a value as a message shows it: its `repr`, cut short, of whatever it is."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except (ValueError, RecursionError):  # A number of thousands of digits, lists without end.
        text = f"a {type(value).__name__} too large to show"
    return _shortened(text, most)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - most // 4]} ... {text[-(most // 4) :]}"


def nearest(name: str, known: list[str], count: int = 3) -> str:
    """Return ' Did you mean a, b or c?' for the known names closest to `name`, or ''."""
    import difflib

    if len(name) > MOST_COMPARED:
        return ""
    lowered = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.5)
    if not matches:
        return ""
    names = [lowered[match] for match in matches]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return f" Did you mean {listed}?"


def refuse_unknown(found: Iterable[str], known: Iterable[str], source: str, what: str) -> None:
    """Refuse names that are not known, naming the nearest that are."""
    names = sorted(known)
    for name in found:
        if name not in names:
            raise UserError(f"{source}: unknown {what} {shown(name)}.{nearest(name, names)}")
