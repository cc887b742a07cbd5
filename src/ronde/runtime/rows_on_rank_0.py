"""Rows of ranks on several hosts, gathered on rank 0 to be published."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from ronde.checkpoint.state import HostCopies
from ronde.comm.process_group import Comm
from ronde.runtime.checkpointing.rank_state import gathered
from ronde.server.table.delta import RowsOfVersion

__all__ = ["rows_on_rank_0"]

_FIELDS = tuple(field.name for field in dataclasses.fields(RowsOfVersion))


def rows_on_rank_0(comm: Comm, rows: Mapping[str, RowsOfVersion]) -> dict[str, RowsOfVersion]:
    """Gather the rows of all ranks by table, on rank 0; {} on the others. A collective."""
    state = {
        name: {field: torch.from_numpy(np.ascontiguousarray(getattr(each, field))) for field in _FIELDS}
        for name, each in rows.items()
    }
    parts = gathered(comm, state, HostCopies() if comm.rank == 0 else None)
    if comm.rank:
        return {}
    return {
        name: RowsOfVersion(
            **{field: np.concatenate([part[name][field].numpy() for part in parts]) for field in _FIELDS}
        )
        for name in rows
    }
