"""Session parts that strategies work on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, final

from ronde.cluster.mesh import Axis, MeshOfRanks
from ronde.comm.process_group import Comm
from ronde.parallel.compute.recompute import Recompute
from ronde.plan import Plan
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context

if TYPE_CHECKING:
    from ronde.server.transport.client import Client

__all__ = ["Meet", "SessionParts"]


class Meet(Protocol):
    """Creates a process group of this rank and others."""

    def __call__(self, name: str, members: Sequence[int], /) -> Comm: ...


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """Groups, context, reducer and collaborators of a session, for one plan.

    Attributes:
        mesh: mesh of the plan, on these ranks.
        everybody: all ranks.
        reducing: the reducer's group, which also sums over tokens under `context`.
        meet: function that creates further groups.
        context: context of the script.
        client: connections to parameter servers, or None.
        recompute: activation checkpointing of blocks; None where all activations are kept.
        again: callback whenever backward has recomputed a part of a call.
        note: callback for a sentence to the user.
    """

    plan: Plan
    mesh: MeshOfRanks
    everybody: Comm
    reducing: Comm
    meet: Meet
    context: Context
    reducer: Reducer
    client: Client | None
    recompute: Recompute | None
    again: Callable[[], object]
    note: Callable[[str], None]

    @property
    def rank(self) -> int:
        return self.everybody.rank

    @property
    def replicas(self) -> Context:
        """Context of the ranks over which whole parameters are updated."""
        if self.reducing.world_size == self.context.world_size:
            return self.context
        return Context(comm=self.reducing, adopt=lambda leaf: None)

    @property
    def averages_tokens(self) -> bool:
        """Tell whether the reducer also sums gradients of a context group's tokens."""
        others = self.mesh.degree("data") * self.mesh.degree("context")
        return self.plan.communication.compressor == "none" and self.reducing.world_size == others

    def meet_along(self, name: str, *axes: Axis) -> Comm:
        """Create the group of ranks that differ from this one along these axes only."""
        return self.meet(name, self.mesh.members(self.rank, *axes))
