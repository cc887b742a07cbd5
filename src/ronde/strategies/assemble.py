"""Makes the strategies of a plan, and has ranks meet in the groups that these need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, final

from ronde.cluster.mesh import Axis, MeshOfRanks
from ronde.comm.process_group import Comm
from ronde.modules.sharded_call import Way, at_once
from ronde.parallel.micro_batches import MicroBatches
from ronde.parallel.pieces import RunOn, run_on
from ronde.parallel.recompute import Recompute
from ronde.plan import Plan
from ronde.plan.strategies import StrategyName, strategies_of
from ronde.policies.zero import Place
from ronde.strategies.rows import RowStrategy
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.strategies import Strategies
from ronde.strategies.strategy import Strategy
from ronde.strategies.zero import ZeroStrategy
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context

if TYPE_CHECKING:
    from ronde.server.transport.client import Client
    from ronde.strategies.blocks import BlockRanks

__all__ = ["Meet", "Parts", "assemble"]

# Axes along which ranks have other blocks of models, and the same rows.
_CUT_MODELS: tuple[Axis, ...] = ("pipeline", "tensor")


class Meet(Protocol):
    """Joins this rank with others in a group."""

    def __call__(self, name: str, members: Sequence[int], /) -> Comm: ...


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a session on which strategies work.

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

    def meet_along(self, name: str, *axes: Axis) -> Comm:
        """Join the ranks that differ from this one along these axes only."""
        return self.meet(name, self.mesh.members(self.rank, *axes))


def assemble(parts: Parts) -> Strategies:
    """Make the strategies of a plan. A collective, where groups are met."""
    names = strategies_of(parts.plan, parts.everybody.world_size)
    if "expert" in names:
        return _with_experts(parts)
    if "pipeline" in names or "tensor" in names:
        return _with_cut_models(parts)
    if "context" in names:
        return _with_sequences(parts, names)
    if "servers" in names:
        return _with_servers(parts)
    if "rows" in names:
        rows = RowStrategy(parts.rows, parts.context, parts.reducer, parts.note)
        return Strategies(ordered=[rows], state=rows.state, way=_way(parts), rows=rows)
    zero = _zero(parts, names, parts.context)
    return Strategies(ordered=zero, state=_state_of(zero), way=_way(parts))


def _way(parts: Parts, run: RunOn = run_on) -> Way:
    pieces = parts.plan.compute.micro_batches
    return at_once if pieces == 1 else MicroBatches(pieces, parts.again, run)


def _with_servers(parts: Parts) -> Strategies:
    from ronde.strategies.servers import ServerStrategy

    assert parts.client is not None
    served = ServerStrategy(parts.plan, parts.rows, parts.context, parts.reducer, parts.client, parts.note)
    return Strategies(ordered=[served], state=served.state, way=_way(parts))


def _zero(parts: Parts, names: Sequence[StrategyName], context: Context) -> list[Strategy]:
    if "zero" not in names:
        return []
    return [ZeroStrategy(parts.plan, parts.rows, context, parts.reducer, parts.note)]


def _state_of(strategies: Sequence[Strategy]) -> ShardedState:
    return strategies[0].state if strategies else ShardedState()


def _with_sequences(parts: Parts, names: Sequence[StrategyName]) -> Strategies:
    """Ranks of a context group have the same rows, and state is cut over all ranks."""
    from ronde.strategies.context import ContextStrategy

    group = parts.meet_along("context", "context")
    context = ContextStrategy(parts.context, group, parts.plan.item("context"))
    zero = _zero(parts, names, Context(comm=parts.rows, adopt=lambda leaf: None))
    one_piece = parts.plan.compute.micro_batches == 1
    return Strategies(
        ordered=[*zero, context],
        state=_state_of(zero),
        way=context.sequences if one_piece else _way(parts, context.sequences.run_on),
        cuts_calls=one_piece,
    )


def _with_cut_models(parts: Parts) -> Strategies:
    """Ranks have other blocks of models: stages, blocks of matrices, or both."""
    axes: list[Axis] = [axis for axis in _CUT_MODELS if parts.mesh.degree(axis) > 1]
    by_axis = {axis: parts.meet_along(axis, axis) for axis in axes}
    group = by_axis[axes[0]] if len(axes) == 1 else parts.meet_along("blocks", *axes)
    ranks = _block_ranks(parts, axes, group)
    plan, context, reducer, note = parts.plan, parts.context, parts.reducer, parts.note
    if "pipeline" not in by_axis:
        from ronde.strategies.tensor import TensorStrategy

        tensor = TensorStrategy(plan, ranks, context, reducer, note)
        return Strategies(
            ordered=[tensor], state=tensor.state, way=_way(parts), outward=tensor.stand_ins.whole
        )
    from ronde.strategies.pipeline import PipelineStrategy

    stages = PipelineStrategy(
        plan, ranks, context, reducer, note,
        pipeline=by_axis["pipeline"], tensor=by_axis.get("tensor"), recompute=parts.recompute,
    )  # fmt: skip
    return Strategies(
        ordered=[stages],
        state=stages.state,
        way=stages.pipeline,
        cuts_calls=True,
        schedule=stages.by_turns,
        sends_gradients=True,
    )


def _block_ranks(parts: Parts, axes: Sequence[Axis], group: Comm) -> BlockRanks:
    from ronde.strategies.blocks import BlockRanks

    mesh = parts.mesh
    places: list[Place] = []
    for rank in range(mesh.ranks):
        row = mesh.coordinate(rank, "data")
        places.append(Place(mesh.members(rank, *axes).index(rank), row, row))
    return BlockRanks(rows=parts.rows, group=group, everybody=parts.everybody, places=places)


def _with_experts(parts: Parts) -> Strategies:
    """Experts over as many neighbours as `expert` says; other such groups have replicas of them."""
    from ronde.strategies.blocks import BlockRanks
    from ronde.strategies.expert import ExpertStrategy

    degree, ranks = parts.plan.mesh.expert, parts.mesh.members(parts.rank, "data")
    group, place = divmod(ranks.index(parts.rank), degree)
    experts = parts.meet("expert", ranks[group * degree : (group + 1) * degree])
    replicas = parts.meet("replicas", ranks[place::degree]) if len(ranks) > degree else None
    known = BlockRanks(
        rows=parts.rows,
        group=experts,
        everybody=parts.everybody,
        places=[Place(rank % degree, rank // degree, rank) for rank in range(len(ranks))],
        replica_group=replicas,
    )
    found = ExpertStrategy(
        parts.plan, known, parts.context, parts.reducer, parts.note, recompute=parts.recompute
    )
    return Strategies(ordered=[found], state=found.state, way=_way(parts), spread=found.spread)
