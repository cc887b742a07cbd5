"""What a trial draws, operation by operation."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ronde.boundary.host_reads import HostReads
from ronde.rng.by_parts import carry_out
from ronde.rng.draws import is_drawn_by_others, is_random, recorded

__all__ = ["RecordedDraws"]


class RecordedDraws(TorchDispatchMode):
    """Notes every random operation, and has what is read on the host watched.

    Args:
        reads: stops a model that reads a tensor there.
    """

    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self.draws: list[tuple[str, list[int]]] = []
        self._reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_drawn_by_others(func, args, kwargs):
            return carry_out(self, func, args, kwargs)
        self._reads.check(func, args)
        result = func(*args, **(kwargs or {}))
        self.seen(func, args, kwargs, result)
        if is_random(func, args, kwargs):
            self.draws.append(recorded(func, args, kwargs or {}, result))
        return result

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation that draws nothing has been carried out."""
        self._reads.follow(func, args, kwargs, result)
