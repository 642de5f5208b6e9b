"""From rows to a gradient step: partition, sum, divide by the number of rows, clip, step."""

from isobatch.update.compiled import CompiledGradient, worth_compiling
from isobatch.update.gradient import (
    Call,
    Evaluate,
    Gather,
    Joinable,
    RowSums,
    chunk_rows,
    means,
    sums,
)
from isobatch.update.partition import balanced, minibatches
from isobatch.update.step import Stepper
from isobatch.update.table import Table

__all__ = [
    "Call",
    "CompiledGradient",
    "Evaluate",
    "Gather",
    "Joinable",
    "RowSums",
    "Stepper",
    "Table",
    "balanced",
    "chunk_rows",
    "means",
    "minibatches",
    "sums",
    "worth_compiling",
]
