"""isobatch envs."""

from __future__ import annotations

from isobatch.cli.flags import Parser
from isobatch.errors import UserError, nearest
from isobatch.text import columns, say


def envs(arguments: list[str]) -> int:
    """List environments, their families and presets."""
    parser = Parser(
        prog="isobatch envs",
        description="List the environment families, or with NAME the environment ids that match.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a family, or part of an id")
    name = parser.parse_args(arguments).name

    from isobatch.envs.catalog import families
    from isobatch.presets import family_preset, preset_name

    listed = families()
    if name is None:
        rows = [("family", "ids", "preset", "N x T", "M", "for example")]
        for family, ids in listed.items():
            batch = family_preset(family, ids[0]).batch
            sizes = str(batch.shape), str(batch.n_minibatches)
            rows.append((family, str(len(ids)), preset_name(family), *sizes, ids[0]))
        for line in columns(rows):
            say(line)
        say("N environments x T steps in M minibatches. isobatch envs FAMILY lists its ids.")
        return 0
    found = {
        family: [i for i in ids if name.lower() in family or name.lower() in i.lower()]
        for family, ids in listed.items()
    }
    if not any(found.values()):
        everything = [*listed, *(env_id for ids in listed.values() for env_id in ids)]
        raise UserError(f"no environment or family matches {name!r}.{nearest(name, everything)}")
    for family, ids in found.items():
        for env_id in ids:
            say(f"{env_id:44} {family:14} preset {preset_name(family)}")
    return 0
