"""Gloo as users of `torch.distributed` call it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting

__all__ = ["GlooWay", "join"]


class GlooWay:
    """All operations, on torch's default group."""

    version = f"torch {torch.__version__}"

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self._ranks = ranks

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        dist: Any = torch.distributed
        # Names that torch 2.13 has given them; the older ones warn there.
        reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        operand = Operand(operation, elements, rank=self.rank, ranks=self._ranks)
        given, result, ranks = operand.given, operand.result, self._ranks
        calls: dict[str, Call] = {
            "all-reduce": lambda _: dist.all_reduce(given),
            "reduce-scatter": lambda _: reduce_scatter(result, given),
            "all-gather": lambda _: all_gather(result, given),
            "broadcast": lambda turn: dist.broadcast(given, turn % ranks),
            "all-to-all": lambda _: dist.all_to_all_single(result, given),
            "barrier": lambda _: dist.barrier(),
        }
        return operand, calls[operation]

    def barrier(self) -> None:
        torch.distributed.barrier()

    def close(self) -> None:
        torch.distributed.destroy_process_group()


def join(meeting: Meeting) -> GlooWay:
    """Make the default group."""
    assert meeting.rank is not None
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting.folder / 'store'}",
        rank=meeting.rank,
        world_size=meeting.ranks,
        timeout=timedelta(seconds=meeting.timeout),
    )
    return GlooWay(meeting.rank, meeting.ranks)
