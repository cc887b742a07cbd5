"""Routes of calls through a pipeline: moves of tensors, by form of call.

All ranks execute the code between units, so all reach the same units in the same order. The first time they
tell each other the tensors that they have; from then on each knows the messages that it has to send and
receive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.pipeline.remote_tensors import Absence, AbsentTensor, is_absent
from ronde.patching.torch_internals import pytree
from ronde.policies.stages import Stages, StageUnit

__all__ = [
    "Move",
    "Place",
    "Problem",
    "Rerouted",
    "Route",
    "RouteStep",
    "Same",
    "UnitOutput",
    "moves_to",
    "sources_of",
]


Place = tuple[int, str, int]
"""Place of a tensor in a call: number of a unit's call, "received" or "output", and leaf."""


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A tensor that one rank sends to another.

    Attributes:
        place: index among the leaves of a unit's arguments.
    """

    place: int
    source: int
    to: int
    shape: AbsentTensor


@dataclasses.dataclass(frozen=True, slots=True)
class UnitOutput:
    """Description of a unit's output that its rank can send to others.

    Attributes:
        leaves: description of each leaf: an `AbsentTensor`, place of a returned argument (`Same`), or value.
        structure: nested containers of the output, with indices of `leaves`.
        draws: operations that drew random numbers, with their arguments.
    """

    leaves: tuple[Any, ...]
    structure: Any
    draws: tuple[Any, ...] = ()

    @classmethod
    def of(cls, value: Any, arguments: Sequence[Any], draws: Sequence[Any]) -> UnitOutput:
        leaves, structure = pytree.tree_flatten(value)
        known = {id(each): place for place, each in enumerate(arguments) if not _is_plain(each)}
        described = (
            Same(known[id(leaf)])
            if id(leaf) in known
            else AbsentTensor.of(leaf)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        )
        # Containers are sent as they are: the description of a structure is torch's own.
        return cls(tuple(described), pytree.tree_unflatten(range(len(leaves)), structure), tuple(draws))

    def rebuilt(self, leaf: Callable[[Any], Any]) -> Any:
        """Rebuild the output of the unit, with `leaf` applied to each of `leaves`."""
        return pytree.tree_map(lambda place: leaf(self.leaves[place]), self.structure)


@dataclasses.dataclass(frozen=True, slots=True)
class Same:
    """An argument that a unit returns as it is."""

    place: int


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Message from a rank that cannot run its unit.

    Attributes:
        error: a pickled exception.
        parameter: name of a parameter of another stage that the unit used.
    """

    error: bytes = b""
    parameter: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class RouteStep:
    """One call of a unit.

    Attributes:
        unit: name of the unit.
        moves: tensors that are sent to its rank before.
        has: whether this rank has each tensor among its arguments.
    """

    unit: str
    moves: tuple[Move, ...]
    has: tuple[bool, ...]
    output: UnitOutput


@dataclasses.dataclass(slots=True)
class Route:
    """The whole route of a call for one micro-batch.

    Attributes:
        between: moves before operations of the model's own code, by their places.
        sources: rank of each tensor among the leaves of the output; -1 where all compute it.
        gradients: whether each of these leaves requires a gradient.
        learnt: whether the whole route is known.
        in_place: whether code has changed a tensor that a unit of this rank returned or received.
        used_later: places of such tensors that code uses beside the units of their chunk.
        verdict: verdict of the call, kept alive, because calls are told apart by its identity.
    """

    steps: list[RouteStep] = dataclasses.field(default_factory=list)
    between: dict[int, tuple[Move, ...]] = dataclasses.field(default_factory=dict)
    sources: tuple[int, ...] = ()
    gradients: tuple[bool, ...] = ()
    learnt: bool = False
    in_place: bool = False
    used_later: set[Place] = dataclasses.field(default_factory=set)
    verdict: Any = None

    @property
    def is_forward(self) -> bool:
        """True if tensors move to higher ranks only, and one rank has the output."""
        moves = [*self.between.values(), *(step.moves for step in self.steps)]
        ends = {source for source in self.sources if source >= 0}
        return len(ends) == 1 and all(move.source < move.to for each in moves for move in each)

    def goes_through(self, stages: Stages, ranks: int) -> bool:
        """Return whether the route passes the chunks of all ranks in order.

        Such a route can be interrupted after each chunk."""
        places = {unit.name: unit.chunk * ranks + unit.stage for unit in stages.units}
        order = [places[step.unit] for step in self.steps]
        ends = {source for source in self.sources if source >= 0}
        all_come = order == sorted(order) and set(order) == set(range(ranks * stages.chunks))
        return all_come and ends == {ranks - 1} and not any(self.between.values()) and not self.in_place


class Rerouted(Exception):
    """Raised when a tensor must be sent before an operation that has already run.

    The route is updated, and the call restarts.
    """


def moves_to(
    comm: Comm, route: Route, absence: Absence, unit: StageUnit, leaves: Sequence[Any]
) -> tuple[Move, ...]:
    """Return the moves of arguments that a unit's rank lacks. A collective.

    Raises:
        UsageError: ranks have reached different units, or no rank can have a needed tensor.
        Rerouted: the rank can compute an argument itself after an earlier move.
    """
    told = comm.all_gather_object((unit.name, [_told(leaf) for leaf in leaves]))
    if len({name for name, _ in told}) > 1:
        names = " and ".join(sorted({name for name, _ in told}))
        raise UsageError(
            f"ranks of a pipeline came to different modules, {names}: the model's code takes different paths "
            "on different ranks; let it branch on its arguments, not on values of a stage [R238]"
        )
    rerouted = False
    moves: list[Move] = []
    for place, needed in enumerate(told[unit.stage][1]):
        source = _source([each for _, each in told], place)
        if needed is not None:
            continue
        if source is None:
            _reroute(comm, route, absence, leaves[place], unit.stage)
            rerouted = True
        else:
            moves.append(Move(place, source, unit.stage, told[source][1][place]))
    if rerouted:
        raise Rerouted
    return tuple(moves)


def sources_of(
    comm: Comm, route: Route, absence: Absence, leaves: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the rank of each output tensor, and whether it requires a gradient.

    -1 stands for a tensor that all ranks have, computed without a parameter. A collective.

    Raises:
        UsageError: no rank can have a tensor.
        Rerouted: a rank can compute a tensor after an earlier move.
    """
    told = comm.all_gather_object([_told(leaf) for leaf in leaves])
    rerouted = False
    sources: list[int] = []
    gradients: list[bool] = []
    for place, column in enumerate(zip(*told, strict=True)):
        have = [rank for rank, each in enumerate(column) if each is not None]
        if not have:
            _reroute(comm, route, absence, leaves[place], comm.world_size - 1)
            rerouted = True
            continue
        moves = any(column[rank].gradient for rank in have)
        sources.append(-1 if len(have) == len(column) and not moves else have[0])
        gradients.append(moves)
    if rerouted:
        raise Rerouted
    return tuple(sources), tuple(gradients)


def _reroute(comm: Comm, route: Route, absence: Absence, value: Any, to: int) -> None:
    """Add moves by which a rank can compute a tensor that no rank has. A collective."""
    made = absence.made(value)
    if made is None:
        raise UsageError(
            "a model computes, in code of its own between its stages, a tensor from outputs of two stages, "
            "and changes it in place: no rank of the pipeline has it; put that code into a module [R239]"
        )
    told = comm.all_gather_object([_told(leaf) for leaf in made.given])
    moves = list(route.between.get(made.place, ()))
    for place, needed in enumerate(told[to]):
        if needed is not None:
            continue
        source = _source(told, place)
        if source is None:
            _reroute(comm, route, absence, made.given[place], to)
        else:
            moves.append(Move(place, source, to, told[source][place]))
    route.between[made.place] = tuple(dict.fromkeys(moves))


def _source(told: Sequence[Sequence[Any]], place: int) -> int | None:
    return next((rank for rank, each in enumerate(told) if each[place] is not None), None)


def _told(leaf: Any) -> AbsentTensor | bool | None:
    """Return None for an absent tensor, the shape of another, True for other values."""
    if is_absent(leaf):
        return None
    return AbsentTensor.of(leaf) if isinstance(leaf, torch.Tensor) else True


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes))
