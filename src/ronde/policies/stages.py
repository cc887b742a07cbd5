"""Pipeline stages of a model, found from its structure.

A *unit* is a module that is not divided: a member of a chain of blocks (`nn.Sequential`, `nn.ModuleList`), or
a module with parameters beside such a chain. Modules that hold chains are *open*: every rank executes their
own code, and modules without parameters. Units in the order of their definition are cut into as many runs as
there are stages, such that the largest run is as small as possible. The cost of a unit is counted in a first
call, or estimated by its parameters. A wrong estimate, or another order, is slow and not wrong.

A `ronde.EmbeddingTable` does not count as a unit: its rows are spread over ranks with other rows of the
batch, or lie on all of them, so every rank looks them up, and modules that hold tables are open.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import nn

__all__ = ["StageUnit", "Stages", "cut_into_stages"]

_CHAINS = (nn.Sequential, nn.ModuleList)
# Relative to matrix entries: a look-up or a norm reads its parameters once at most.
_READ_ONLY = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class StageUnit:
    """Module that runs on one stage.

    Attributes:
        name: qualified name in the model.
        cost: operations of its forward; only ratios count.
        stage: the rank.
        chunk: index of the stage's run of units that it belongs to.
    """

    name: str
    module: nn.Module
    cost: float
    stage: int
    chunk: int = 0

    @property
    def parameters(self) -> list[torch.Tensor]:
        return list(self.module.parameters())


@dataclasses.dataclass(frozen=True, slots=True)
class Stages:
    """Cut of a model into stages.

    Attributes:
        units: units in the order of their definition.
        open_parameters: parameters outside of all units.
        tables: modules that every rank calls.
    """

    units: tuple[StageUnit, ...]
    open_parameters: tuple[torch.Tensor, ...]
    tables: tuple[nn.Module, ...] = ()

    def stage_of(self, parameter: torch.Tensor) -> int | None:
        """Return the only stage that uses a parameter; None for several stages or none."""
        stages = {unit.stage for unit in self.units if any(each is parameter for each in unit.parameters)}
        alone = len(stages) == 1 and not any(each is parameter for each in self.open_parameters)
        return stages.pop() if alone else None

    @property
    def shared(self) -> list[torch.Tensor]:
        """Parameters that every rank has, each once."""
        stages: dict[int, set[int]] = {id(each): {-1, -2} for each in self.open_parameters}
        tensors = {id(each): each for each in self.open_parameters}
        for unit in self.units:
            for each in unit.parameters:
                stages.setdefault(id(each), set()).add(unit.stage)
                tensors.setdefault(id(each), each)
        return [tensors[key] for key, found in stages.items() if len(found) > 1]

    @property
    def chunks(self) -> int:
        """Number of chunks (ranges of units) per stage."""
        return 1 + max((unit.chunk for unit in self.units), default=0)

    @property
    def by_turns(self) -> list[StageUnit]:
        """Units interleaved: the first of each stage, then the second of each."""
        count = collections.Counter[int]()
        turns: list[int] = []
        for unit in self.units:
            turns.append(count[unit.stage])
            count[unit.stage] += 1
        return [self.units[place] for place in sorted(range(len(turns)), key=turns.__getitem__)]

    @property
    def untied(self) -> set[int]:
        """Ids of the tables' parameters, with a gradient that each rank computes whole."""
        return {id(each) for table in self.tables for each in table.parameters()}

    def stands(self, model: nn.Module) -> bool:
        """Return whether the model still has the same units."""
        known = dict(model.named_modules())
        return all(known.get(unit.name) is unit.module for unit in self.units)


def cut_into_stages(
    model: nn.Module,
    stages: int,
    owner: Callable[[torch.Tensor], int | None] = lambda tensor: None,
    chunks: int = 1,
    closed: Collection[int] = (),
    counted: Mapping[nn.Module, float] | None = None,
) -> Stages:
    """Cut a model into units, and these into stages.

    Args:
        chunks: runs of units of each stage, interleaved with the others'; one where units are too few, or a
            table is looked up.
        owner: function that returns the stage of a decided parameter, for instance of another model that
            shares it; -1 for one that every rank has.
        closed: ids of modules that are not divided.
        counted: operations by module; where a unit is missing, costs are estimated by parameters.
    """
    units = _units(model, stages * chunks, closed)
    inside = {id(each) for _, module in units for each in module.parameters()}
    outside = tuple(each for each in model.parameters() if id(each) not in inside)
    direct = tuple(each for each in _direct(model, units) if id(each) in inside)
    costs = _costs([module for _, module in units], counted or {})
    numbers = least_maximum(costs, stages * chunks)
    made: list[StageUnit] = []
    for (name, module), cost, number in zip(units, costs, numbers, strict=True):
        decided = {found for each in module.parameters() if (found := owner(each)) is not None} - {-1}
        chunk, stage = divmod(number, stages)
        made.append(StageUnit(name, module, cost, min(decided) if decided else stage, chunk))
    tables = tuple(part for part in model.modules() if _is_table(part))
    if chunks > 1 and (tables or len({(unit.stage, unit.chunk) for unit in made}) < stages * chunks):
        return cut_into_stages(model, stages, owner, closed=closed, counted=counted)
    return Stages(tuple(made), (*outside, *direct), tables)


def _costs(units: Sequence[nn.Module], counted: Mapping[nn.Module, float]) -> list[float]:
    """Return the costs of units: counted ones if all were counted, else estimates."""
    found = [counted.get(unit, 0.0) for unit in units]
    by_parameters = [_cost(unit) for unit in units]
    complete = all(count or not cost for count, cost in zip(found, by_parameters, strict=True))
    return found if complete else by_parameters


def least_maximum(costs: Sequence[float], runs: int) -> list[int]:
    """Cut costs into runs with the smallest maximal sum; return each cost's run.

    Runs may be empty. Ties go to later runs. Dynamic programming over the number of runs.
    """
    count = len(costs)
    ends = [0.0]
    for cost in costs:
        ends.append(ends[-1] + cost)
    best = [[ends[n] for n in range(count + 1)]]
    cuts: list[list[int]] = [[0] * (count + 1)]
    for _ in range(1, runs):
        row, cut = [0.0] * (count + 1), [0] * (count + 1)
        for n in range(count + 1):
            row[n], cut[n] = min((max(best[-1][k], ends[n] - ends[k]), k) for k in range(n + 1))
        best.append(row)
        cuts.append(cut)
    numbers = [0] * count
    n = count
    for run in range(runs - 1, 0, -1):
        k = cuts[run][n]
        numbers[k:n] = [run] * (n - k)
        n = k
    return numbers


def _units(model: nn.Module, stages: int, closed: Collection[int]) -> list[tuple[str, nn.Module]]:
    """Return the modules that are not divided, with their names, each once."""
    seen: set[int] = set()
    opened: set[int] = {id(model)}
    while True:
        seen.clear()
        units = list(_walk("", model, opened, seen, closed))
        heavy = [(name, module) for name, module in units if next(module.parameters(), None) is not None]
        divisible = [module for _, module in heavy if _children(module) and id(module) not in closed]
        if len(heavy) >= stages or not divisible:
            return units
        opened.add(id(max(divisible, key=_cost)))


def _walk(
    name: str, module: nn.Module, opened: set[int], seen: set[int], closed: Collection[int]
) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    if _is_table(module):
        return
    children = [] if id(module) in closed else _children(module)
    is_chain = type(module) in _CHAINS and children
    if is_chain or (children and (id(module) in opened or _is_open(module, closed))):
        for key, child in children:
            path = f"{name}.{key}" if name else key
            is_link = is_chain and type(child) not in _CHAINS and id(child) not in opened
            if is_link and not _holds_table(child):
                if id(child) not in seen:
                    seen.add(id(child))
                    yield path, child
            else:
                yield from _walk(path, child, opened, seen, closed)
    elif next(module.parameters(), None) is not None:
        yield name, module


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _is_open(module: nn.Module, closed: Collection[int]) -> bool:
    return _holds_chain(module, closed) or _holds_table(module)


def _is_table(module: nn.Module) -> bool:
    return bool(getattr(type(module), "looks_up_on_every_rank", False))


def _holds_table(module: nn.Module) -> bool:
    return any(map(_is_table, module.modules()))


def _holds_chain(module: nn.Module, closed: Collection[int]) -> bool:
    """Return whether a chain of several blocks with parameters is inside."""
    return any(
        type(part) in _CHAINS
        and id(part) not in closed
        and sum(next(child.parameters(), None) is not None for child in part.children()) > 1
        for part in module.modules()
    )


def _direct(model: nn.Module, units: Sequence[tuple[str, nn.Module]]) -> Iterator[torch.Tensor]:
    """Yield the parameters that open modules have themselves."""
    inside = {id(part) for _, module in units for part in module.modules()}
    for part in model.modules():
        if id(part) not in inside:
            yield from (each for each in part._parameters.values() if each is not None)


def _cost(module: nn.Module) -> float:
    """Estimate a cost: entries of multiplied matrices, and a little for other parameters."""
    cost = 0.0
    for part in module.modules():
        for name, each in part._parameters.items():
            if each is None:
                continue
            looked_up = isinstance(part, (nn.Embedding, nn.EmbeddingBag))
            multiplied = each.dim() >= 2 and not looked_up and name != "bias"
            cost += each.numel() * (1.0 if multiplied else _READ_ONLY if not looked_up else 0.0)
    return cost
