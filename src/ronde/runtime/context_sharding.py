"""`context=N`: the one place that joins what cuts sequences over the ranks of a context group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.sequences import Sequences
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.runtime.sharding import Sharding
from ronde.tensor.context import Context, Region

__all__ = ["ContextSharding"]


class ContextSharding(Sharding):
    """Sequences are cut inside of calls; state is cut over all ranks, which have the same parameters.

    Args:
        comm: the reducer's group: of the ranks that have other rows, or of all, where state is cut.
        group: the context group, of those that have the same rows.
    """

    def __init__(self, plan: Plan, comm: Comm, group: Comm, note: Callable[[str], None]) -> None:
        super().__init__(plan, comm, note)
        self._state_ranks = Context(comm=comm, adopt=lambda leaf: None)
        # What a model computes of whole values all ranks of the group compute alike.
        context = Context.within_rows(group)
        self._sequences = Sequences(context, plan.item("context"))
        self.run_on = self._sequences.run_on
        self.way = self._sequences if plan.compute.micro_batches == 1 else None
        self._script: Context | None = None

    def bind(self, context: Context) -> None:
        self._script = context
        super().bind(self._state_ranks)

    def install(self, patches: Patches, context: Context) -> None:
        """Clip gradients, too, among the ranks that have shards of them."""
        super().install(patches, self._state_ranks)

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        assert self._script is not None
        observed = self._script.region is Region.OBSERVED
        with super().calling(module), self._sequences.observing(module) if observed else nullcontext():
            yield

    def notes(self) -> list[str]:
        if self._sequences.cut_some:
            return super().notes()
        return [
            f"{self._plan.item('context')} cuts nothing: no module attends to its sequences, so every rank "
            f"of a group computed everything"
        ]
