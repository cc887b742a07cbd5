"""One micro-batch's way through the stages of a model, on one rank."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ronde.comm.packed_exception import pack_exception, unpack_exception
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.modules.sharded_call import ShardedCall
from ronde.parallel.compute.micro_batch_pieces import run_on
from ronde.parallel.holding import forwards, holding
from ronde.parallel.pipeline.call_start import CallStart
from ronde.parallel.pipeline.chunks import ChunkTurn, TurnEnds
from ronde.parallel.pipeline.edges import Received, Sent, Tie
from ronde.parallel.pipeline.remote_tensors import Absence, AbsentTensor, is_absent, packed
from ronde.parallel.pipeline.route import (
    Move,
    Place,
    Problem,
    Route,
    RouteStep,
    Same,
    UnitOutput,
    moves_to,
    sources_of,
)
from ronde.parallel.pipeline.skipped_draws import DescribedDraw, ReportedDraws, draw_again
from ronde.parallel.separate_leaves import HeldLeaves
from ronde.patching.torch_internals import pop_function_mode, pytree
from ronde.policies.stages import Stages, StageUnit
from ronde.tensor.shard import innermost_rows
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["PieceOfCall", "UnitFailed", "UsedElsewhere"]


class UnitFailed(Exception):
    """Raised when a unit has failed; no rank waits for its output."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class UsedElsewhere(Exception):
    """Raised when code outside of a stage uses a parameter of it."""

    def __init__(self, parameter: torch.Tensor) -> None:
        super().__init__()
        self.parameter = parameter


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """Tensor that a unit returned or received, while the route is recorded."""

    tensor: torch.Tensor
    version: int
    place: Place
    chunk: int

    @property
    def has_changed(self) -> bool:
        return self.tensor._version != self.version


class PieceOfCall:
    """One micro-batch on this rank.

    Args:
        both: groups of a pipeline's ranks, for tensors and for their gradients; perhaps one.
        route: route of calls of this form; recorded here if unknown.
        start: start of the call.
        held: parameters of this rank.
        under_way: list that receives sent messages.
        turn: the only chunk of this rank to run; None for all.

    Attributes:
        trace: tensors from which backward reaches its messages.
        raised: exceptions of this rank's units; zeros went on in place of their outputs.
    """

    def __init__(
        self,
        both: tuple[Comm, Comm],
        stages: Stages,
        route: Route,
        start: CallStart,
        device: torch.device,
        held: HeldLeaves,
        under_way: list[Any],
        turn: ChunkTurn | None = None,
    ) -> None:
        self._both, self._comm, self._turn = both, both[0], turn
        self._asked = f"pipeline={self._comm.world_size}"
        self._held = held
        self._under_way = under_way
        self._stages = stages
        self._route = route
        self._token = start.token
        self._tied = start.tied
        self._look_ups, self._sequences = start.look_ups, start.sequences
        self._device = device
        self._learns = not route.learnt
        self._absence = Absence(device, self._between, notes=self._learns)
        self._next = 0
        # Outputs of this rank's units, and received tensors, while the route is learnt.
        self._made: dict[int, _Made] = {}
        self._chunk = 0
        self.trace: list[torch.Tensor] = []
        self.raised: list[Exception] = []

    def carry_out(self, call: ShardedCall, given: Sequence[Any]) -> Any:
        """Return the model's output, with some tensors on this rank and others absent.

        Raises:
            TurnEnds: a later turn runs the rest.
        """
        if self._learns:
            self._route.steps.clear()
            self._route.used_later.clear()
        try:
            with self._held.watched(), self._swapped(call.module), self._absence:
                run = run_on if self._sequences is None else self._sequences.run_on
                output = run(call, given)
            output = map_leaves(self._absence.real, output)
            if self._learns:
                tensors = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
                found = sources_of(self._comm, self._route, self._absence, tensors)
                self._route.sources, self._route.gradients = found
                self._route.in_place = any(each.has_changed for each in self._made.values())
                self._look_at(tensors)
                self._route.learnt = True
            elif self._next != len(self._route.steps):
                raise self._another_way(type(call.module).__name__)
            return output
        finally:
            # A reference cycle: received tensors would stay until garbage is collected.
            del self._absence

    def carry_out_turn(self, call: ShardedCall, given: Sequence[Any]) -> Any:
        """Call `carry_out`; return None where a later turn runs the rest."""
        try:
            return self.carry_out(call, given)
        except TurnEnds:
            return None

    @contextmanager
    def _swapped(self, module: nn.Module) -> Iterator[None]:
        """Route calls of units to this object, and put tied parameters into modules."""
        callers = {unit.module: self._caller(unit, unit.module.forward) for unit in self._stages.units}
        callers |= {table: self._table_caller(table, table.forward) for table in self._stages.tables}
        with forwards(callers), holding(module, lambda each: self._tied.get(id(each))):
            yield

    def _caller(self, unit: StageUnit, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with pop_function_mode():
                return self._call(unit, forward, args, kwargs)

        return called

    def _table_caller(self, table: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with pop_function_mode():
                args, kwargs = map_leaves(self._absence.real, (args, kwargs))
                if any(map(is_absent, leaves((args, kwargs)))):
                    raise UsageError(
                        f"{type(table).__name__} is looked up by ids that one stage of {self._asked} "
                        f"computes, and every rank looks them up; make the ids of the model's inputs, or "
                        f"take a plan without pipeline [R241]"
                    )
                return self._of_every_rank(self._look_ups.rows(lambda: forward(*args, **kwargs)))

        return called

    def _of_every_rank(self, rows: torch.Tensor) -> torch.Tensor:
        """Return looked-up rows of all ranks; gradients are summed over stages."""
        if self._token is None or not rows.requires_grad:
            return rows
        # Later messages come after it in the graph, and it after earlier ones: all ranks reach its backward.
        self._token, rows = Tie.apply(self._comm, self._token, rows)
        self.trace.append(self._token)
        return rows

    def _call(self, unit: StageUnit, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a unit, on its own rank or another."""
        values, structure = pytree.tree_flatten((args, kwargs))
        values = [self._absence.real(value) for value in values]
        owner = unit.stage
        if owner == self._comm.rank:
            self._chunk = unit.chunk
            if self._turn is not None:
                self._turn.enter(unit.chunk)
        if self._learns:
            self._look_at(values, chunk=self._chunk)
            _refuse_checkpoint(unit, self._asked)
            moves = moves_to(self._comm, self._route, self._absence, unit, values)
        else:
            moves = self._step(unit, values).moves
        has = tuple(not is_absent(value) for value in values)
        for move in moves:
            values[move.place] = self._moved(move, values[move.place])
        if owner == self._comm.rank and self._turn is not None and self._turn.is_past:
            return self._once_more(self._turn, self._route.steps[self._next - 1].output, values)
        if owner == self._comm.rank:
            args, kwargs = pytree.tree_unflatten(values, structure)
            output, told = self._own(unit, forward, args, kwargs, values)
        else:
            output, told = None, None
        if self._learns:
            told = self._comm.broadcast_object(told, owner)
            if isinstance(told, Problem):
                raise self._failed(unit, told)
            self._route.steps.append(RouteStep(unit.name, moves, has, told))
        if owner == self._comm.rank:
            return output
        known = self._route.steps[-1 if self._learns else self._next - 1].output
        draw_again(known.draws, self._device)
        return known.rebuilt(lambda leaf: self._absent(leaf, values))

    def _between(self, place: int, values: list[Any]) -> None:
        """Handle an operation of the model's own code before it runs."""
        if self._learns:
            self._look_at(values)
        for move in self._route.between.get(place, ()):
            values[move.place] = self._moved(move, values[move.place])

    def _own(
        self, unit: StageUnit, forward: Callable[..., Any], args: Any, kwargs: Any, values: Sequence[Any]
    ) -> tuple[Any, UnitOutput | Problem | None]:
        """Run a unit of this rank; return its output, and its description for others."""
        drawn: list[DescribedDraw] = []
        noting = ReportedDraws(lambda draw, _: drawn.append(draw)) if self._learns else nullcontext()
        try:
            with holding(unit.module, self._own_leaf), noting:
                output = self._held.run(unit.module, forward, args, kwargs)
        except UsedElsewhere as used:
            if not self._learns:
                raise
            return None, Problem(parameter=_name_of(used.parameter, self._stages, unit))
        except Exception as error:
            if self._learns:
                self._comm.broadcast_object(Problem(error=pack_exception(error)), unit.stage)
                raise UnitFailed(error) from error
            self.raised.append(error)
            known = self._route.steps[self._next - 1].output
            return known.rebuilt(lambda leaf: self._zeros(leaf, values)), None
        if self._learns:
            told = UnitOutput.of(output, values, drawn)
            self._has_come("output", told.leaves, output)
            return output, told
        if self._turn is not None:
            self._has_come("output", self._route.steps[self._next - 1].output.leaves, output)
        return output, None

    def _has_come(self, how: str, described: Sequence[Any], value: Any) -> None:
        """Record the output of a unit, or a received one."""
        if self._token is None:
            return
        for leaf, (shape, each) in enumerate(zip(described, pytree.tree_leaves(value), strict=True)):
            if isinstance(shape, AbsentTensor):
                self._has_come_to((self._place, how, leaf), innermost_rows(each))

    def _has_come_to(self, place: Place, tensor: torch.Tensor) -> None:
        if self._learns:
            self._made[id(tensor)] = _Made(tensor, tensor._version, place, self._chunk)
        elif self._turn is not None and place in self._route.used_later:
            self._turn.keep(place, tensor)

    @property
    def _place(self) -> int:
        """Return the number of the unit that is being called."""
        return len(self._route.steps) + 1 if self._learns else self._next

    def _look_at(self, values: Sequence[Any], *, chunk: int | None = None) -> None:
        """Record that code uses tensors.

        Args:
            chunk: index of the chunk of a unit that uses them; None for code between units.
        """
        for value in values:
            made = self._made.get(id(innermost_rows(value))) if isinstance(value, torch.Tensor) else None
            if made is not None and made.chunk != chunk:
                self._route.used_later.add(made.place)

    def _once_more(self, turn: ChunkTurn, known: UnitOutput, values: Sequence[Any]) -> Any:
        """Return the output of a unit from an earlier turn."""
        draw_again(known.draws, self._device)

        def leaf(place: int) -> Any:
            found = known.leaves[place]
            kept = turn.kept.get((self._place, "output", place))
            return self._absent(found, values) if kept is None else self._over(kept, found)

        return pytree.tree_map(leaf, known.structure)

    def _own_leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        leaf = self._held.leaf(parameter)
        return None if leaf is None else self._held.stand_in(parameter, leaf)

    def _step(self, unit: StageUnit, values: Sequence[Any]) -> RouteStep:
        if self._next >= len(self._route.steps):
            raise self._another_way(unit.name)
        step = self._route.steps[self._next]
        self._next += 1
        past = self._turn is not None and self._turn.is_past  # not all of these values are still here
        has = step.has if past else tuple(not is_absent(value) for value in values)
        if step.unit != unit.name or step.has != has:
            raise self._another_way(unit.name)
        return step

    def _another_way(self, name: str) -> UsageError:
        return UsageError(
            f"under {self._asked} a model takes another path than in its first call of the same form, at "
            f"{name}: ranks would wait for one another; keep the condition in an attribute of the module, as "
            "a number or flag [R238]"
        )

    def _moved(self, move: Move, value: Any) -> Any:
        """Send or receive a tensor for a unit, by the recorded route."""
        rank, turn = self._comm.rank, self._turn
        under_way = self._under_way
        graph = move.shape.gradient and self._token is not None
        if rank == move.source and turn is not None and turn.is_past:
            return value
        if rank == move.source:
            rows = innermost_rows(value)
            if tuple(rows.shape) != move.shape.shape:
                raise self._another_way(f"a tensor of shape {list(value.shape)}")
            if graph:
                self.trace.append(Sent.apply(self._both, move.to, self._token, rows, under_way))
            else:
                under_way.append(self._comm.send(packed(rows), move.to))
            return value
        if rank != move.to:
            return value
        place = self._place, "received", move.place
        if turn is not None and turn.is_past:
            if place not in turn.kept:
                return value
            tensor = turn.kept[place]
        else:
            tensor = self._received(move, graph)
            if self._token is not None:
                self._has_come_to(place, tensor)
        tensor = self._over(tensor, move.shape)
        self._absence.received(value, tensor)
        return tensor

    def _received(self, move: Move, graph: bool) -> torch.Tensor:
        room = move.shape.room(self._device)
        if graph:
            tensor = Received.apply(self._both, move.source, self._token, room, self._under_way)
            self.trace.append(tensor)
        else:
            tensor = self._comm.receive(room, move.source)
        return tensor

    def _absent(self, leaf: Any, values: Sequence[Any]) -> Any:
        if isinstance(leaf, Same):
            return values[leaf.place]
        return self._over(self._absence.stand_in(leaf), leaf) if isinstance(leaf, AbsentTensor) else leaf

    def _zeros(self, leaf: Any, values: Sequence[Any]) -> Any:
        """Return zeros for the output of a failed unit: other ranks wait for it."""
        if isinstance(leaf, Same):
            return values[leaf.place]
        return self._over(leaf.room(self._device).zero_(), leaf) if isinstance(leaf, AbsentTensor) else leaf

    def _over(self, rows: torch.Tensor, shape: AbsentTensor) -> torch.Tensor:
        """Return the global tensor of which this rank has `rows`."""
        if shape.cut is None or self._sequences is None:
            return rows
        return self._sequences.over(rows, shape.cut)

    def _failed(self, unit: StageUnit, problem: Problem) -> Exception:
        if problem.parameter:
            known = {
                f"{each.name}|{name}": parameter
                for each in self._stages.units
                for name, parameter in each.module.named_parameters()
            }
            return UsedElsewhere(known[problem.parameter])
        return UnitFailed(unpack_exception(problem.error))


def _name_of(parameter: torch.Tensor, stages: Stages, user: StageUnit) -> str:
    for unit in stages.units:
        for name, each in unit.module.named_parameters():
            if each is parameter:
                return f"{unit.name}|{name}"
    raise UsageError(
        f"{user.name} uses a parameter of a model that does not belong to it and is on another rank of the "
        "pipeline; register it in the module that uses it [R240]"
    )


def _refuse_checkpoint(unit: StageUnit, asked: str) -> None:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            raise UsageError(
                f"the model calls {unit.name} in a checkpoint (torch.utils.checkpoint), which computes it "
                f"again in backward, which this version does not support under {asked}; switch its "
                "checkpoints off [R235]"
            )
        frame = frame.f_back
