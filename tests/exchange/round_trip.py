"""A real configuration through a recipe and back, compared key by key with what it was."""

from isobatch import exchange
from isobatch.exchange.table import parse

SPELT = ("policy_kwargs", "normalize", "device", "network.cnn")
"""Keys that say one thing in several ways; the recipes are compared."""


def comes_back(source, given, env=None):
    """Check the trip; return what was imported.

    Keys may differ that the import said it does not know, that touch nothing that is learned, or
    that the library leaves to its user.
    """
    format = exchange.FORMATS[source]
    imported = exchange.read(source, given, env)
    exported = exchange.write(source, imported.recipe)
    assert exported.missing == []
    flat = format.flatten(given, env)
    there, back = parse(format, flat), parse(format, format.flatten(exported.given, env))
    table, said = format.table(flat), format.values(imported.recipe, {})
    for name, key in table.items():
        spoken = any(line.startswith(name) for line in imported.unknown)
        silent = not key.field and not key.lacks and name not in said
        # rsl_rl is written in one of its layouts, whichever it was read from.
        excused = name in SPELT or spoken or silent or name not in back
        if not excused and (name in flat or there[name] is not None):
            assert back[name] == there[name], name
    again = exchange.read(source, exported.given, env).recipe
    assert again == imported.recipe
    kept = exchange.write(source, imported.recipe, given)
    assert format.flatten(kept.given, env) == {
        name: value for name, value in flat.items() if name not in format.derived
    }
    return imported
