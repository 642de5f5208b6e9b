"""Stable-Baselines3's zip: which of its members are read, and what of its settings is plain.

`data` is JSON, in which whatever is no plain value stands as `:serialized:`, a pickle in base64.
Those are never decoded. SB3 writes the plain attributes of such an object beside it, and they are
read.
"""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any, NamedTuple

from torch import Tensor

from isobatch import plain
from isobatch.errors import UserError, one_line, shown
from isobatch.weights import torch_file

DATA, WEIGHTS, OPTIMIZER, VERSION = (
    "data", "policy.pth", "policy.optimizer.pth", "_stable_baselines3_version",
)  # fmt: skip
MOST_DATA = 2**26
"""Bytes of `data`: beside settings it holds the last observations."""
SERIALIZED = ":serialized:"
OTHERS = {
    "sac": "SAC", "td3": "TD3 or DDPG", "dqn": "DQN", "her": "HER", "tqc": "TQC",
    "qrdqn": "QR-DQN", "ars": "ARS", "crossq": "CrossQ", "recurrent": "RecurrentPPO",
    "maskable": "MaskablePPO",
}  # fmt: skip
"""Algorithms by the part of their policies' module that names them."""
POLICIES = ("common", "ppo", "a2c")
"""Parts of stable_baselines3 that hold the policies of PPO and A2C."""


class Archive(NamedTuple):
    """What is read of a zip."""

    data: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: Any
    """The optimiser's state dict, None where there is none."""
    version: str
    """SB3's, '' where it is not said."""


def read(content: bytes, source: str) -> Archive:
    """Read the members that are known by name; nothing is unpacked to disk."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except Exception as error:
        raise UserError(f"{source} is not a zip that can be read: {one_line(error)}") from None
    with archive:
        missing = {DATA, WEIGHTS} - set(archive.namelist())
        if missing:
            raise UserError(
                f"{source} is not a zip of Stable-Baselines3: {min(missing)} is not in it"
            )

        def member(name: str, most: int = torch_file.MOST) -> bytes:
            return _member(archive, name, source, most)

        text = member(DATA, MOST_DATA).decode("utf-8", "replace")
        data = plain.from_json(text, f"{DATA} in {source}", MOST_DATA)
        if not isinstance(data, dict):
            raise UserError(f"{DATA} in {source} does not hold settings")
        refuse_others(data, source)
        weights = torch_file.state_dict(member(WEIGHTS), f"{WEIGHTS} in {source}")
        optimizer, version = None, ""
        if OPTIMIZER in archive.namelist():
            optimizer = torch_file.load(member(OPTIMIZER), f"{OPTIMIZER} in {source}")
        if VERSION in archive.namelist():
            version = member(VERSION, 100).decode("utf-8", "replace").strip()
    return Archive(data, weights, optimizer, version)


def _member(archive: zipfile.ZipFile, name: str, source: str, most: int) -> bytes:
    size = archive.getinfo(name).file_size
    if size > most:
        raise UserError(f"{name} in {source} has {size:,} bytes, more than the {most:,} read")
    try:
        return archive.read(name)
    except Exception as error:  # A wrong checksum, an unknown way to pack, a password.
        raise UserError(f"{name} in {source} cannot be read: {one_line(error)}") from None


def refuse_others(data: dict[str, Any], source: str) -> None:
    """Refuse the zip of another algorithm, by its name, and a policy of the user's own class."""
    module = str(attributes(data.get("policy_class")).get("__module__", ""))
    parts = module.split(".")
    other = next((name for part, name in OTHERS.items() if part in parts), None)
    if "cg_max_steps" in data:
        other = "TRPO"
    if other is None and not {"n_steps", "gae_lambda"} <= data.keys():
        other = "another algorithm"
    if other is not None:
        raise UserError(f"{source} holds {other}; Isobatch reads PPO and A2C")
    if parts[:1] != ["stable_baselines3"] or parts[1:2] not in [[each] for each in POLICIES]:
        raise UserError(
            f"{source} has a policy class of its own, from {shown(module)}: its networks are code, "
            "which is not read"
        )


def algorithm(data: dict[str, Any]) -> str:
    """Return the recipe's name for the algorithm: a zip does not say, but PPO has epochs."""
    return "ppo" if "n_epochs" in data else "a2c"


def attributes(value: Any) -> dict[str, Any]:
    """Return the plain attributes of an entry, serialized or not; none of what has none."""
    if not isinstance(value, dict):
        return {}
    return {name: each for name, each in value.items() if name not in (SERIALIZED, ":type:")}


def is_plain(value: Any) -> bool:
    """Say whether an entry is a value, not a pickle."""
    return not isinstance(value, dict) or SERIALIZED not in value


def schedule(value: Any) -> float | str | None:
    """Return a schedule as a number, as lin_X where X falls to 0, or None where it is code.

    Newer versions of SB3 and of the zoo write schedules as objects with numbers for attributes, or
    as their text: LinearSchedule(start=0.1, end=0.0, end_fraction=1.0).
    """
    if is_plain(value):
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    kind, numbers = str(value.get(":type:", "")), attributes(value)
    if "value_schedule" in numbers:
        kind = str(numbers["value_schedule"])
        numbers = dict(re.findall(r"(\w+)=(-?[\d.]+(?:e[+-]?\d+)?)", kind[:200]))
    try:
        found = {name: float(each) for name, each in numbers.items()}
    except (TypeError, ValueError):
        return None
    if "ConstantSchedule" in kind and "val" in found:
        return found["val"]
    if "LinearSchedule" not in kind:
        return None
    start = found.get("initial_value", found.get("start"))
    falls_to_zero = found.get("end", 0.0) == 0.0 and found.get("end_fraction", 1.0) == 1.0
    return f"lin_{start!r}" if start is not None and falls_to_zero else None


def class_name(value: Any) -> str:
    """Return the last part of a class that stands as its text: <class 'torch.nn.ReLU'> -> ReLU."""
    return str(value).removesuffix("'>").rpartition(".")[2]
