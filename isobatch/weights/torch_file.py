"""Files that `torch.save` wrote, read without running them: tensors and plain data alone."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any

import torch
from torch import Tensor

from isobatch.errors import UserError, one_line

MOST = 2**32
"""Bytes of weights, packed or not."""


def load(content: bytes, source: str) -> Any:
    """Return tensors and plain data; a line says what is wrong with anything else."""
    _refuse_bomb(content, source)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # Whatever bytes that PyTorch did not write come to.
        named = re.search(r"GLOBAL (\S+)", str(error))
        why = (
            f"it names {named[1]}, which is not read: a pickle can run code"
            if named
            else one_line(str(error).partition("\n")[0]) or type(error).__name__
        )
        raise UserError(f"{source} cannot be read: {why}") from None


def state_dict(content: bytes, source: str) -> dict[str, Tensor]:
    """Return a module's weights by name, in the order of the file."""
    found = load(content, source)
    if not isinstance(found, dict) or not found:
        raise UserError(f"{source} does not hold weights: a state dict was expected")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UserError(f"{source} does not hold weights alone: {name!r} is no tensor")
        if value.is_sparse or value.is_quantized or not value.is_floating_point():
            raise UserError(f"{source}: {name} does not hold floating-point numbers")
    return found


def _refuse_bomb(content: bytes, source: str) -> None:
    """Refuse what unpacks to more than it may; PyTorch itself packs nothing."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            size = sum(each.file_size for each in inner.infolist())
    except Exception as error:
        raise UserError(f"{source} cannot be read: {one_line(error)}") from None
    if size > MOST:
        raise UserError(f"{source} unpacks to {size:,} bytes, more than the {MOST:,} that are read")
