"""Sealed files: tensors and plain data in one safetensors file, with a hash of both in its header.

No pickles, and equal content gives equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isobatch import files
from isobatch.errors import DamagedFile, one_line
from isobatch.files import Folder

MOST = 2**36
"""Bytes of a sealed file."""
KEY = "isobatch"
"""The header's one entry: several would be written in any order."""
Sealed = tuple[dict[str, Tensor], dict[str, Any]]


def write_sealed(path: Path, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
    """Write tensors and plain data to `path` at once: there whole, or not at all."""
    files.write(path, sealed(tensors, data))


def read_sealed(path: Path) -> Sealed:
    """Read what `write_sealed` wrote; raise `DamagedFile` if a byte of it changed."""
    with Folder(path.parent) as folder:
        return read_in(folder, path.name)


def read_in(folder: Folder, name: str) -> Sealed:
    """Read a sealed file of a folder; raise `DamagedFile` if it is not what was written."""
    content = folder.read(name, MOST)
    try:
        return unsealed(content)
    except DamagedFile as error:
        raise DamagedFile(f"{folder.path / name} is damaged: {error}") from None


def sealed(tensors: dict[str, Tensor], data: dict[str, Any]) -> bytes:
    """Return tensors and plain data as the bytes of a sealed file."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(data, allow_nan=False, sort_keys=True)
    seal = json.dumps({"data": text, "sha256": _digest(plain, text)})
    return save(plain, metadata={KEY: seal})


def unsealed(content: bytes) -> Sealed:
    """Return what the bytes of a sealed file hold; raise `DamagedFile` if one of them changed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])["__metadata__"]
        # Version 0.1.0 wrote two entries.
        seal = json.loads(header[KEY]) if KEY in header else header
        tensors, text = load(content), seal["data"]
        if _digest(tensors, text) != seal["sha256"]:
            raise DamagedFile("its hash does not match")
        data = json.loads(text)
    except DamagedFile:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFile(one_line(error)) from None
    if not isinstance(data, dict):
        raise DamagedFile("its data are no object")
    return tensors, data


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # One of nothing may have strides that cannot be viewed as bytes.
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
