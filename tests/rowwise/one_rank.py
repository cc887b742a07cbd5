"""What an observed call asks of its run, where all ranks are one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from ronde.rng.draws import Draw
from ronde.rowwise.kept_sizes import KeptSizes
from ronde.rowwise.observe import Observation
from ronde.rowwise.sequence import Sequence as Steps
from ronde.rowwise.verdict import Verdict
from ronde.tensor.tree import leaves

T = torch.Tensor


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
        return func is _Norm

    def looks_up(self, func: Any) -> bool:
        return False

    def catches(self) -> bool:
        return False


class _Norm(torch.autograd.Function):
    """Stands for a batch norm with statistics of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: T, weight: Any, bias: Any, running: Any, options: Any) -> T:
        ctx.save_for_backward(x, weight, bias)
        ctx.options = options
        others = [dim for dim in range(x.dim()) if dim != 1]
        for each, now in zip(running, (x.mean(others), x.var(others)), strict=True):
            if each is not None:
                each.data.lerp_(now.to(each.dtype), options[0])
        return torch.batch_norm(x, weight, bias, None, None, True, *options, False)

    @staticmethod
    def backward(ctx: Any, *gradients: T) -> Any:
        given = [None if each is None else each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            result = torch.batch_norm(*given, None, None, True, *ctx.options, False)
        found = iter(torch.autograd.grad(result, [each for each in given if each is not None], gradients))
        return *(each if each is None else next(found) for each in given), None, None


_batch_norm: Any = F.batch_norm


def _joining(
    x: T, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> T:  # fmt: skip
    if not training:
        return _batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return _Norm.apply(x, weight, bias, (mean, var), (momentum, eps))


@contextmanager
def joining() -> Iterator[None]:
    """Inside, `batch_norm` is one for which ranks meet."""
    F.batch_norm = _joining
    try:
        yield
    finally:
        F.batch_norm = _batch_norm


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
    sizes: KeptSizes | None = None,
) -> Observed:
    """Watch `module(*args, **kwargs)`, as if there were four ranks with as many rows.

    Args:
        axes: of the leaves; by default the first of every tensor that has one.
        sizes: that modules keep from other calls.
    """
    kwargs = kwargs or {}
    values = list(leaves((args, kwargs)))
    if axes is None:
        axes = [0 if isinstance(value, torch.Tensor) and value.dim() else None for value in values]
    mine = next(value.shape[axis] for value, axis in zip(values, axes, strict=True) if axis is not None)
    del values
    ranks = OneRank(4 * mine, mine, elsewhere=elsewhere or {})
    observation = Observation(module, (args, kwargs), axes, ranks, list, sizes)
    with joining():
        output, verdict, steps = observation.run(lambda: module(*args, **kwargs))
    return Observed(output, verdict, steps, observation, ranks)
