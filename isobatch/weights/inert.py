"""Pickles of strangers as inert records: nothing that they name is imported, looked up or called.

A pickle is a program. Here the classes and functions it names become `Record`s, which only remember
what they were given; a name that is not on the list is refused before anything is made of it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import UserError, one_line, shown

Names = Container[tuple[str, str]]
"""Pairs of module and name."""
NUMPY = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    )
} | {("numpy", "ndarray"), ("numpy", "dtype")}
"""What arrays, dtypes and scalars are pickled by, in NumPy 1 and 2."""
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""Kinds of numbers an array may hold."""


class Record:
    """What a pickle says of an object: its class or function, its arguments, its state."""

    of: tuple[str, str]
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> Record:
        """Remember the arguments."""
        made = super().__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    def __init__(self, *arguments: Any) -> None:
        """Nothing more: a pickle may leave this out."""

    def __setstate__(self, state: Any) -> None:
        """Remember the state."""
        self.state = state


def load(content: bytes, source: str, admitted: Names) -> Any:
    """Return what a pickle holds, every object in it a `Record`.

    A name that is neither `admitted` nor one of NumPy's arrays is refused in a line.
    """

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) == ("collections", "OrderedDict"):
                return dict
            if (module, name) not in NUMPY and (module, name) not in admitted:
                raise UserError(
                    f"{source} names {shown(f'{module}.{name}')}, which is not read: a pickle can "
                    "run code"
                )
            # A class of its own for each: whatever a pickle does to it ends with it.
            return type(Record.__name__, (Record,), {"of": (module, name)})

    try:
        return Unpickler(io.BytesIO(content)).load()
    except UserError:
        raise
    except Exception as error:  # Whatever bytes that are no pickle come to.
        raise UserError(f"{source} is not a pickle that can be read: {one_line(error)}") from None


def array(value: Any) -> NDArray[np.float64]:
    """Return the numbers of a record of an array or scalar, or of a plain number, as float64.

    What is none is a `ValueError`.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.asarray(value, np.float64)
    if not isinstance(value, Record):
        raise ValueError(f"{shown(value)} is not an array")
    name = value.of[1]
    if name == "_reconstruct":
        _, shape, kind, is_fortran, content = value.state
        return _filled(content, kind, shape, "F" if is_fortran else "C")
    if name == "_frombuffer":
        content, kind, shape, order = value.arguments
        return _filled(content, kind, shape, order)
    if name == "scalar":
        kind, content = value.arguments
        return _filled(content, kind, (), "C")
    raise ValueError(f"{value.of[0]}.{name} is not an array")


def _filled(content: Any, kind: Any, shape: Any, order: Any) -> NDArray[np.float64]:
    """Return bytes as an array."""
    if not (isinstance(kind, Record) and kind.of == ("numpy", "dtype")):
        raise ValueError("an array without a dtype")
    name = kind.arguments[0]
    if name not in NUMBERS or not isinstance(content, bytes | bytearray) or order not in "CF":
        raise ValueError("an array that does not hold numbers")
    mark = kind.state[1] if isinstance(kind.state, tuple) and kind.state[1] in "<>" else "<"
    flat = np.frombuffer(content, np.dtype(name).newbyteorder(mark))
    return flat.reshape(shape, order=order).astype(np.float64)
