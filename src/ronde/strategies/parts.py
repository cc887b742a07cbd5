"""The parts of a session on which strategies work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, final

from ronde.cluster.mesh import Axis, MeshOfRanks
from ronde.comm.process_group import Comm
from ronde.parallel.recompute import Recompute
from ronde.plan import Plan
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context

if TYPE_CHECKING:
    from ronde.server.transport.client import Client

__all__ = ["Meet", "Parts"]


class Meet(Protocol):
    """Joins this rank with others in a group."""

    def __call__(self, name: str, members: Sequence[int], /) -> Comm: ...


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Groups, context, reducer and collaborators of a session, for one plan.

    Attributes:
        mesh: of the plan, on these ranks.
        everybody: all ranks.
        rows: the reducer's group.
        meet: joins further groups.
        context: of the script.
        client: connections to parameter servers; None without any.
        recompute: computes blocks of models again in backward; None where all activations are kept.
        again: told whenever backward has computed a part of a call again.
        note: takes a sentence for the user.
    """

    plan: Plan
    mesh: MeshOfRanks
    everybody: Comm
    rows: Comm
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
        """The context of the ranks over which whole parameters are updated."""
        if self.rows.world_size == self.context.world_size:
            return self.context
        return Context(comm=self.rows, adopt=lambda leaf: None)

    @property
    def averages_tokens(self) -> bool:
        """Tell whether the reducer sums gradients of a context group's tokens, too."""
        others = self.mesh.degree("data") * self.mesh.degree("context")
        return self.plan.communication.compressor == "none" and self.rows.world_size == others

    def meet_along(self, name: str, *axes: Axis) -> Comm:
        """Join the ranks that differ from this one along these axes only."""
        return self.meet(name, self.mesh.members(self.rank, *axes))
