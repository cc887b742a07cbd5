"""Construction of a plan's strategies, with the process groups that they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ronde.cluster.mesh import Axis
from ronde.comm.process_group import Comm
from ronde.modules.sharded_call import Way, at_once
from ronde.parallel.compute.micro_batch_pieces import RunOn, run_on
from ronde.parallel.compute.micro_batches import MicroBatches
from ronde.plan.schedule import chunks_of
from ronde.plan.strategies import StrategyName, strategies_of
from ronde.policies.zero import MeshPosition
from ronde.strategies.rows import RowStrategy
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.strategies import Strategies
from ronde.strategies.strategy import Strategy
from ronde.strategies.zero import ZeroStrategy
from ronde.tensor.context import Context

if TYPE_CHECKING:
    from ronde.strategies.block_ranks import BlockRanks
    from ronde.strategies.context import ContextStrategy
    from ronde.strategies.mixture_calls import MixtureRanks

__all__ = ["assemble"]

# Mesh axes along which ranks have other blocks of models, and the same rows.
_CUT_MODELS: tuple[Axis, ...] = ("pipeline", "tensor")


def assemble(parts: SessionParts) -> Strategies:
    """Create the strategies of a plan. A collective where they need process groups."""
    names = strategies_of(parts.plan, parts.everybody.world_size)
    if not {"pipeline", "tensor", "expert"}.isdisjoint(names):
        return _with_cut_models(parts, names)
    if "context" in names:
        return _with_sequences(parts, names)
    if "servers" in names:
        return _with_servers(parts)
    if "rows" in names:
        rows = RowStrategy(parts.reducing, parts.context, parts.reducer, parts.note)
        return Strategies(ordered=[rows], state=rows.state, way=_way(parts), rows=rows)
    zero = _zero(parts, names, parts.context)
    return Strategies(ordered=zero, state=_state_of(zero), way=_way(parts))


def _way(parts: SessionParts, run: RunOn = run_on) -> Way:
    pieces = parts.plan.compute.micro_batches
    return at_once if pieces == 1 else MicroBatches(pieces, parts.again, run)


def _with_servers(parts: SessionParts) -> Strategies:
    from ronde.strategies.servers import ServerStrategy

    assert parts.client is not None
    served = ServerStrategy(
        parts.plan, parts.reducing, parts.context, parts.reducer, parts.client, parts.note
    )
    return Strategies(ordered=[served], state=served.state, way=_way(parts))


def _zero(parts: SessionParts, names: Sequence[StrategyName], context: Context) -> list[Strategy]:
    if "zero" not in names:
        return []
    return [ZeroStrategy(parts.plan, parts.reducing, context, parts.reducer, parts.note, parts.context)]


def _state_of(strategies: Sequence[Strategy]) -> ShardedState:
    return strategies[0].state if strategies else ShardedState()


def _with_sequences(parts: SessionParts, names: Sequence[StrategyName]) -> Strategies:
    """Create the strategies of a mesh with context groups. State is cut over all ranks."""
    from ronde.strategies.own_mixtures import OwnMixtures

    context = _context(parts)
    zero = _zero(parts, names, parts.replicas)
    gathered, item = _state_of(zero).gathered, parts.plan.item("context")
    context.mixtures = OwnMixtures(
        parts, item, gathered, together=parts.everybody, sequences=context.group, in_stages=False
    )
    way, cuts_calls = _way_along(parts, context)
    return Strategies(ordered=[*zero, context], state=_state_of(zero), way=way, cuts_calls=cuts_calls)


def _way_along(parts: SessionParts, context: ContextStrategy) -> tuple[Way, bool]:
    """Return the executor that cuts sequences, and whether it cuts calls on all rows."""
    one_piece = parts.plan.compute.micro_batches == 1
    return (context.sequences if one_piece else _way(parts, context.sequences.run_on)), one_piece


def _context(parts: SessionParts) -> ContextStrategy:
    from ronde.strategies.context import ContextStrategy

    group = parts.meet_along("context", "context")
    plan = parts.plan
    later = parts.reducer.averages if parts.averages_tokens else lambda leaf: False
    return ContextStrategy(parts.context, group, plan.item("context"), plan.mesh.context_attention, later)


def _with_cut_models(parts: SessionParts, names: Sequence[StrategyName]) -> Strategies:
    """Create the strategies of a mesh that cuts models into blocks.

    Blocks are pipeline stages, blocks of matrices, experts, or several of these.
    """
    context = _context(parts) if "context" in names else None
    groups = _Groups(parts, None if context is None else context.group)
    if "pipeline" in names:
        return _with_stages(parts, groups, context)
    if "expert" in names:
        from ronde.strategies.expert import ExpertStrategy

        cuts: Strategy = ExpertStrategy(parts, groups.of_blocks(), groups.of_mixtures())
    else:
        from ronde.strategies.tensor import TensorStrategy

        cuts = TensorStrategy(parts, groups.of_blocks())
    if context is None:
        return Strategies(ordered=[cuts], state=cuts.state, way=_way(parts))
    way, cuts_calls = _way_along(parts, context)
    return Strategies(ordered=[cuts, context], state=cuts.state, way=way, cuts_calls=cuts_calls)


def _with_stages(parts: SessionParts, groups: _Groups, context: ContextStrategy | None) -> Strategies:
    from ronde.strategies.pipeline import PipelineGroups, PipelineStrategy

    several = chunks_of(parts.plan.compute.schedule) > 1
    stages = PipelineStrategy(
        parts,
        groups.of_blocks(),
        PipelineGroups(
            calls=groups.along("pipeline"),
            outputs=parts.meet_along("outputs", "pipeline"),
            gradients=parts.meet_along("gradients", "pipeline") if several else None,
            stage=groups.of_stage(),
        ),
        groups.along("tensor") if parts.mesh.degree("tensor") > 1 else None,
        None if context is None else context.sequences,
        groups.of_mixtures() if parts.plan.mesh.expert > 1 else None,
    )
    return Strategies(
        ordered=[stages] if context is None else [stages, context],
        state=stages.state,
        way=stages.pipeline,
        cuts_calls=True,
        schedule=stages.by_turns,
        with_loss=stages.with_loss,
        sends_gradients=True,
        must_see=stages.must_see,
    )


class _Groups:
    """Process groups of a mesh that cuts models, each created once.

    Collective: all ranks ask for the same groups in the same order.

    Experts are spread over `expert` neighbours along `data` and `context`, and over their tensor groups.
    Other such neighbours have replicas of them.
    """

    def __init__(self, parts: SessionParts, sequences: Context | None) -> None:
        mesh = parts.mesh
        self._parts, self._mesh, self._sequences = parts, mesh, sequences
        self._known: dict[tuple[int, ...], Comm] = {}
        if sequences is not None:
            self._known[mesh.members(parts.rank, "context")] = sequences.comm
        self._experts = parts.plan.mesh.expert
        self._rows = [mesh.index(rank, "data", "context") for rank in range(mesh.ranks)]
        self._places = [self._place(rank) for rank in range(mesh.ranks)]

    def _place(self, rank: int) -> MeshPosition:
        """Return the position of a rank.

        Blocks are numbered by stage, then by neighbour, then by place in the tensor group.
        """
        replica, neighbour = divmod(self._rows[rank], self._experts)
        stage, block = (self._mesh.coordinate(rank, axis) for axis in _CUT_MODELS)
        first = (stage * self._experts + neighbour) * self._mesh.degree("tensor")
        return MeshPosition(first + block, replica, self._rows[rank])

    def along(self, *axes: Axis) -> Comm:
        """Return the group of ranks that differ from this one along these axes only."""
        return self._of("-".join(axes), self._mesh.members(self._parts.rank, *axes))

    def _of(self, name: str, members: Sequence[int]) -> Comm:
        key = tuple(members)
        if key not in self._known:
            self._known[key] = self._parts.meet(name, key)
        return self._known[key]

    def _others(self) -> list[int]:
        """Return the ranks with other blocks, ordered by block."""
        mine = self._places[self._parts.rank]
        return [rank for rank, place in enumerate(self._places) if place.replica == mine.replica]

    def _replicas(self) -> list[int]:
        """Return the ranks that have the same experts."""
        mine = self._places[self._parts.rank]
        return [rank for rank, place in enumerate(self._places) if place.block == mine.block]

    def of_blocks(self) -> BlockRanks:
        from ronde.strategies.block_ranks import BlockRanks

        mesh, parts, experts = self._mesh, self._parts, self._experts
        replicas = self._replicas()
        few = experts > 1 and len(replicas) > 1
        cuts_parameters = parts.plan.state.on(parts.reducing.world_size).cuts_parameters
        beside = experts > 1 and mesh.degree("tensor") * mesh.degree("pipeline") > 1
        return BlockRanks(
            rows=parts.reducing,
            group=self._of("blocks", self._others()),
            everybody=parts.everybody,
            places=self._places,
            row_ranks=mesh.members(parts.rank, "data", "context"),
            replica_group=parts.meet("replicas-reducer", replicas) if few else None,
            gathering=self._of("replicas", replicas) if few and cuts_parameters else None,
            copies=[self._copy(rank) for rank in range(mesh.ranks)] if beside else None,
            sequences=self._sequences,
        )

    def _copy(self, rank: int) -> MeshPosition:
        """Return the position of a rank for parameters outside of experts.

        All neighbours have the same blocks of them.
        """
        stage, block = (self._mesh.coordinate(rank, axis) for axis in _CUT_MODELS)
        of_stage = self._experts * self._mesh.degree("tensor")
        return MeshPosition(stage * of_stage + block, self._rows[rank], self._rows[rank])

    def _members_of_stage(self) -> set[int]:
        return set(self._mesh.members(self._parts.rank, "data", "context", "tensor"))

    def of_stage(self) -> Comm:
        """Return the group of ranks with the same stage."""
        return self._of("stage", sorted(self._members_of_stage()))

    def of_mixtures(self) -> MixtureRanks:
        from ronde.strategies.mixture_calls import MixtureRanks

        mesh = self._mesh
        stage = self._members_of_stage()
        tensor = None
        if mesh.degree("tensor") > 1:
            tensor = Context.within_rows(self.along("tensor"), self._sequences)
        alike = tensor
        if self._sequences is not None:
            alike = Context.within_rows(self.along("context", "tensor"))
        return MixtureRanks(
            experts=self._of("experts", [rank for rank in self._others() if rank in stage]),
            together=self.of_stage(),
            replicas=len(self._replicas()),
            tensor=tensor,
            alike=alike,
            sequences=self._sequences,
            in_stages=mesh.degree("pipeline") > 1,
        )
