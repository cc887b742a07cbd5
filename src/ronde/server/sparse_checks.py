"""Validation of requests about tables, before they are written to the log.

The compiled loops over rows check neither shapes nor dtypes, so this must. Invalid requests raise
`ValueError` or `KeyError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ronde.server.array_codec import Array
from ronde.server.table.state import ADMISSION, ROWS
from ronde.server.table.table import Table

__all__ = ["check_rows", "check_update"]


def check_update(lr: float | None, arrays: Sequence[Array], table: Table) -> None:
    """Check the shapes and dtypes of an update.

    It has ids and counts, int64 [n], gradients, float [n, dim], and a learning rate or None.
    """
    ids, gradients, counts = arrays
    if ids.dtype != np.int64 or ids.ndim != 1 or counts.dtype != np.int64 or counts.shape != ids.shape:
        raise ValueError("ids and counts must be int64 with one axis [R430]")
    if gradients.shape != (len(ids), table.config.dim) or gradients.dtype.kind != "f":
        raise ValueError(f"gradients of shape {list(gradients.shape)} for {len(ids)} ids [R430]")
    if len(counts) and not (counts.min() >= 0 and counts.max() < 1 << 32):
        raise ValueError("a count is not negative [R430]")
    if lr is None and table.config.optimizer.lr is None:
        raise ValueError("neither the table nor the request has a learning rate [R430]")


def check_rows(entries: Sequence[str], arrays: Sequence[Array], table: Table) -> None:
    """Check a table's state, as `Table.state` returns it."""
    own = Table(dataclasses.replace(table.config, cold=None)).state()
    if sorted(entries) != sorted(own) or len(entries) != len(arrays):
        raise ValueError("these are not the entries of such a table [R430]")
    state = dict(zip(entries, arrays, strict=True))
    rows = len(state["ids"])
    wide = {"embeddings": table.config.dim, "states": table.config.optimizer.state(table.config.dim)}
    for name, value in own.items():
        came = state[name]
        shape = (rows, wide[name]) if name in wide else (rows,)
        if name in ROWS and came.shape != shape:
            raise ValueError(f"{name} of shape {list(came.shape)} for {rows} rows")
        if came.ndim != value.ndim or came.dtype.kind != value.dtype.kind:
            raise ValueError(
                f"{name} is {came.dtype} of {came.ndim} axes, not {value.dtype} of {value.ndim} [R430]"
            )
    counters = ADMISSION + "counters"
    if counters in own and own[counters].shape != state[counters].shape:
        raise ValueError(f"a filter of {own[counters].shape} counters, not {state[counters].shape} [R430]")
    waiting, counts = state.get(ADMISSION + "ids"), state.get(ADMISSION + "counts")
    if waiting is not None and counts is not None and waiting.shape != counts.shape:
        raise ValueError("each waiting id needs a count [R430]")
    if len(np.unique(state["ids"])) < rows:
        raise ValueError("an id is given two rows [R430]")
