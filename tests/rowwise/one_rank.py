"""What an observed call asks of its run, where all ranks are one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ronde.rng.draws import Draw
from ronde.rowwise.observe import Observation
from ronde.rowwise.sequence import Sequence as Steps
from ronde.rowwise.verdict import Verdict
from ronde.tensor.tree import leaves


@dataclasses.dataclass
class OneRank:
    """A rank that pretends to hold `mine` of `rows` rows, and draws for itself.

    Attributes:
        votes: problems that it was asked about.
        elsewhere: what other ranks have, by the number of the vote.
    """

    rows: int
    mine: int
    votes: list[str] = dataclasses.field(default_factory=list)
    elsewhere: dict[int, str] = dataclasses.field(default_factory=dict)

    def draw(self, func: Any, args: Any, kwargs: Any, draw: Draw) -> Any:
        return func(*args, **kwargs)

    def agree(self, problem: str) -> str:
        self.votes.append(problem)
        return problem or self.elsewhere.get(len(self.votes) - 1, "")

    def normalizes(self, func: Any) -> bool:
        return isinstance(func, torch._ops.OpOverload)


@dataclasses.dataclass(frozen=True)
class Observed:
    output: Any
    verdict: Verdict
    steps: Steps
    observation: Observation
    ranks: OneRank


def observe(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    axes: Sequence[int | None] | None = None,
    elsewhere: dict[int, str] | None = None,
) -> Observed:
    """Watch `module(*args, **kwargs)`, as if there were four ranks with as many rows.

    Args:
        axes: of the leaves; by default the first of every tensor that has one.
    """
    kwargs = kwargs or {}
    values = list(leaves((args, kwargs)))
    if axes is None:
        axes = [0 if isinstance(value, torch.Tensor) and value.dim() else None for value in values]
    mine = next(value.shape[axis] for value, axis in zip(values, axes, strict=True) if axis is not None)
    del values
    ranks = OneRank(4 * mine, mine, elsewhere=elsewhere or {})
    observation = Observation(module, (args, kwargs), axes, ranks)
    output, verdict, steps = observation.run(lambda: module(*args, **kwargs))
    return Observed(output, verdict, steps, observation, ranks)
