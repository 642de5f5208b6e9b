"""isobatch envs."""

from __future__ import annotations

from isobatch.cli.flags import Parser
from isobatch.errors import UserError, nearest
from isobatch.text import counted, say


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
        say(f"{'family':14} {'ids':>5}  preset")
        for family, ids in listed.items():
            batch = family_preset(family, ids[0]).batch
            size = f"{batch.shape}, {counted(batch.n_minibatches, 'minibatch', 'minibatches')}"
            say(f"{family:14} {len(ids):5}  {preset_name(family)}: {size}, e.g. {ids[0]}")
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
