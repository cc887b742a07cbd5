"""Makes the strategies of a plan, and has ranks meet in the groups that these need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ronde.cluster.mesh import Axis
from ronde.comm.process_group import Comm
from ronde.modules.sharded_call import Way, at_once
from ronde.parallel.micro_batches import MicroBatches
from ronde.parallel.pieces import RunOn, run_on
from ronde.plan.schedule import chunks_of
from ronde.plan.strategies import StrategyName, strategies_of
from ronde.policies.zero import Place
from ronde.strategies.parts import Parts
from ronde.strategies.rows import RowStrategy
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.strategies import Strategies
from ronde.strategies.strategy import Strategy
from ronde.strategies.zero import ZeroStrategy
from ronde.tensor.context import Context

if TYPE_CHECKING:
    from ronde.strategies.blocks import BlockRanks
    from ronde.strategies.context import ContextStrategy

__all__ = ["assemble"]

# Axes along which ranks have other blocks of models, and the same rows.
_CUT_MODELS: tuple[Axis, ...] = ("pipeline", "tensor")


def assemble(parts: Parts) -> Strategies:
    """Make the strategies of a plan. A collective, where groups are met."""
    names = strategies_of(parts.plan, parts.everybody.world_size)
    if "expert" in names:
        return _with_experts(parts)
    if "pipeline" in names or "tensor" in names:
        return _with_cut_models(parts, names)
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
    context = _context(parts)
    zero = _zero(parts, names, parts.replicas)
    way, cuts_calls = _way_along(parts, context)
    return Strategies(ordered=[*zero, context], state=_state_of(zero), way=way, cuts_calls=cuts_calls)


def _way_along(parts: Parts, context: ContextStrategy) -> tuple[Way, bool]:
    """The way that cuts sequences, and whether it cuts calls that have all rows."""
    one_piece = parts.plan.compute.micro_batches == 1
    return (context.sequences if one_piece else _way(parts, context.sequences.run_on)), one_piece


def _context(parts: Parts) -> ContextStrategy:
    from ronde.strategies.context import ContextStrategy

    group = parts.meet_along("context", "context")
    plan = parts.plan
    return ContextStrategy(parts.context, group, plan.item("context"), plan.mesh.context_attention)


def _with_cut_models(parts: Parts, names: Sequence[StrategyName]) -> Strategies:
    """Ranks have other blocks of models: stages, blocks of matrices, or both."""
    context = _context(parts) if "context" in names else None
    axes: list[Axis] = [axis for axis in _CUT_MODELS if parts.mesh.degree(axis) > 1]
    by_axis = {axis: parts.meet_along(axis, axis) for axis in axes}
    group = by_axis[axes[0]] if len(axes) == 1 else parts.meet_along("blocks", *axes)
    ranks = _block_ranks(parts, axes, group, None if context is None else context.group)
    if "pipeline" not in by_axis:
        from ronde.strategies.tensor import TensorStrategy

        tensor = TensorStrategy(parts, ranks)
        ordered: list[Strategy] = [tensor]
        way, cuts_calls = _way(parts), False
        if context is not None:
            ordered.append(context)
            way, cuts_calls = _way_along(parts, context)
        return Strategies(
            ordered=ordered,
            state=tensor.state,
            way=way,
            cuts_calls=cuts_calls,
        )
    from ronde.strategies.pipeline import PipelineStrategy

    sequences = None if context is None else context.sequences
    several = chunks_of(parts.plan.compute.schedule) > 1
    back = parts.meet_along("gradients", "pipeline") if several else None
    stages = PipelineStrategy(parts, ranks, by_axis["pipeline"], by_axis.get("tensor"), sequences, back)
    return Strategies(
        ordered=[stages] if context is None else [stages, context],
        state=stages.state,
        way=stages.pipeline,
        cuts_calls=True,
        schedule=stages.by_turns,
        with_loss=stages.with_loss,
        sends_gradients=True,
    )


def _block_ranks(parts: Parts, axes: Sequence[Axis], group: Comm, sequences: Context | None) -> BlockRanks:
    from ronde.strategies.blocks import BlockRanks

    mesh = parts.mesh
    places: list[Place] = []
    for rank in range(mesh.ranks):
        row = mesh.members(rank, "data", "context").index(rank)
        places.append(Place(mesh.members(rank, *axes).index(rank), row, row))
    return BlockRanks(
        rows=parts.rows,
        group=group,
        everybody=parts.everybody,
        places=places,
        row_ranks=mesh.members(parts.rank, "data", "context"),
        sequences=sequences,
    )


def _with_experts(parts: Parts) -> Strategies:
    """Experts over as many neighbours along `data` as `expert` says, and their tensor groups.

    Other such groups have replicas of them.
    """
    from ronde.strategies.blocks import BlockRanks
    from ronde.strategies.expert import ExpertStrategy

    mesh, degree = parts.mesh, parts.plan.mesh.expert

    def place(rank: int) -> tuple[int, int]:
        """Which group, and where in it; ranks of a tensor group follow one another."""
        group, row = divmod(mesh.coordinate(rank, "data"), degree)
        return group, row * mesh.degree("tensor") + mesh.coordinate(rank, "tensor")

    known = [place(rank) for rank in range(mesh.ranks)]
    group, block = known[parts.rank]
    experts = parts.meet("expert", [rank for rank, each in enumerate(known) if each[0] == group])
    copies = [rank for rank, each in enumerate(known) if each[1] == block]
    rows = [mesh.coordinate(rank, "data") for rank in range(mesh.ranks)]
    places = [Place(block, group, row) for (group, block), row in zip(known, rows, strict=True)]
    tensor, blocks = None, None
    if mesh.degree("tensor") > 1:
        tensor = parts.meet_along("tensor", "tensor")
        blocks = [Place(mesh.coordinate(rank, "tensor"), row, row) for rank, row in enumerate(rows)]
    ranks = BlockRanks(
        rows=parts.rows,
        group=experts,
        everybody=parts.everybody,
        places=places,
        row_ranks=mesh.members(parts.rank, "data"),
        replica_group=parts.meet("replicas", copies) if len(copies) > 1 else None,
        copies=blocks,
    )
    found = ExpertStrategy(parts, ranks, tensor)
    return Strategies(ordered=[found], state=found.state, way=_way(parts), spread=found.spread)
