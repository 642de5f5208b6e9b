"""Errors that are the user's to mend: one line, said before anything is written."""


class UserError(ValueError):
    """A request that cannot be met as it stands; its message is one clear line.

    The command line prints it and ends with exit code 2; Python callers catch a `ValueError`.
    """


def nearest(name: str, known: list[str], count: int = 3) -> str:
    """Return ' Did you mean a, b or c?' for the known names closest to `name`, or ''."""
    import difflib

    lowered = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.5)
    if not matches:
        return ""
    names = [lowered[match] for match in matches]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return f" Did you mean {listed}?"
