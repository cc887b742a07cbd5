"""What ranks have learnt of a call's first micro-batch: who has which tensor when a unit is called.

All ranks carry out the code between units, so all come to the same units in the same order. The first time
they tell each other what they have; from then on each knows what it has to send, and what it will be sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.absent import Absence, Shape, is_absent
from ronde.patching.torch_internals import pytree
from ronde.policies.stages import Stages, StageUnit

__all__ = [
    "Move",
    "Output",
    "Place",
    "Problem",
    "Rerouted",
    "Route",
    "Same",
    "Step",
    "moves_to",
    "sources_of",
]


Place = tuple[int, str, int]
"""Of a tensor in a call: the number of a unit's call, whether it was received or returned, and the leaf."""


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A tensor that one rank sends to another.

    Attributes:
        place: among the leaves of a unit's arguments.
    """

    place: int
    source: int
    to: int
    shape: Shape


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """What a unit returns, in a form that its rank can tell the others.

    Attributes:
        leaves: of each what it is: a `Shape`, the place of the argument that it is itself, or a value.
        structure: of what it returns, with places in `leaves`.
        draws: operations that drew random numbers, with their arguments.
    """

    leaves: tuple[Any, ...]
    structure: Any
    draws: tuple[Any, ...] = ()

    @classmethod
    def of(cls, value: Any, arguments: Sequence[Any], draws: Sequence[Any]) -> Output:
        leaves, structure = pytree.tree_flatten(value)
        known = {id(each): place for place, each in enumerate(arguments) if not _is_plain(each)}
        described = (
            Same(known[id(leaf)])
            if id(leaf) in known
            else Shape.of(leaf)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        )
        # Containers travel as they are: the description of a structure is torch's own.
        return cls(tuple(described), pytree.tree_unflatten(range(len(leaves)), structure), tuple(draws))

    def rebuilt(self, leaf: Callable[[Any], Any]) -> Any:
        """What the unit returns, with what `leaf` makes of each of `leaves`."""
        return pytree.tree_map(lambda place: leaf(self.leaves[place]), self.structure)


@dataclasses.dataclass(frozen=True, slots=True)
class Same:
    """An argument that a unit returns as it is."""

    place: int


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What a unit's rank tells the others instead, when it cannot go on: `error`, or a parameter's name.

    Attributes:
        error: an exception, packed.
    """

    error: bytes = b""
    parameter: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One call of a unit.

    Attributes:
        unit: its name.
        moves: what goes to its rank before.
        has: whether this rank has each tensor among its arguments.
    """

    unit: str
    moves: tuple[Move, ...]
    has: tuple[bool, ...]
    output: Output


@dataclasses.dataclass(slots=True)
class Route:
    """All of a call for one micro-batch.

    Attributes:
        between: what goes over ranks before operations of the model's own code, by their places.
        sources: for each leaf of the output that is a tensor the rank that has it; -1 where all compute it.
        gradients: which of these leaves have one.
        learnt: all of it is known.
        in_place: code has changed what a unit of this rank has returned, or what was received.
        used_later: places of such tensors that code uses beside the units of their chunk.
        verdict: held, because calls are told apart by which it is.
    """

    steps: list[Step] = dataclasses.field(default_factory=list)
    between: dict[int, tuple[Move, ...]] = dataclasses.field(default_factory=dict)
    sources: tuple[int, ...] = ()
    gradients: tuple[bool, ...] = ()
    learnt: bool = False
    in_place: bool = False
    used_later: set[Place] = dataclasses.field(default_factory=set)
    verdict: Any = None

    @property
    def is_forward(self) -> bool:
        """Whether all goes from lower ranks to higher ones, and one rank has all of the output."""
        moves = [*self.between.values(), *(step.moves for step in self.steps)]
        ends = {source for source in self.sources if source >= 0}
        return len(ends) == 1 and all(move.source < move.to for each in moves for move in each)

    def goes_through(self, stages: Stages, ranks: int) -> bool:
        """Whether it goes through the chunks of all ranks one after another, and can end after each."""
        places = {unit.name: unit.chunk * ranks + unit.stage for unit in stages.units}
        order = [places[step.unit] for step in self.steps]
        ends = {source for source in self.sources if source >= 0}
        all_come = order == sorted(order) and set(order) == set(range(ranks * stages.chunks))
        return all_come and ends == {ranks - 1} and not any(self.between.values()) and not self.in_place


class Rerouted(Exception):
    """A tensor has to be sent before an operation that is past; the route knows, and the call begins anew."""


def moves_to(
    comm: Comm, route: Route, absence: Absence, unit: StageUnit, leaves: Sequence[Any]
) -> tuple[Move, ...]:
    """What the rank of a unit lacks of its arguments, and who sends it. All ranks come here.

    Raises:
        UsageError: where ranks have come to different units, or nobody can have what is needed.
        Rerouted: where its rank can compute an argument itself if it is sent something before.
    """
    told = comm.all_gather_object((unit.name, [_told(leaf) for leaf in leaves]))
    if len({name for name, _ in told}) > 1:
        names = " and ".join(sorted({name for name, _ in told}))
        raise UsageError(
            f"ranks of a pipeline came to different modules, {names}: the model's own code goes another way "
            f"on different ranks; have it decide by its arguments, not by values of a stage"
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
    """For each tensor of an output the rank that has it, and whether it requires a gradient.

    -1 stands for what all ranks have, computed without a parameter. All ranks come here.

    Raises:
        UsageError: where nobody can have a tensor.
        Rerouted: where a rank can compute one if it is sent something before.
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
    """Have a rank sent what it lacks to compute a tensor that no rank has. All ranks come here."""
    made = absence.made(value)
    if made is None:
        raise UsageError(
            "a model computes, in code of its own between its stages, a tensor of what two stages have made, "
            "and changes it in place: no rank of the pipeline has it; put that code into a module"
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


def _told(leaf: Any) -> Shape | bool | None:
    """Of an absent tensor nothing, of another its shape, of anything else that it is there."""
    if is_absent(leaf):
        return None
    return Shape.of(leaf) if isinstance(leaf, torch.Tensor) else True


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes))
