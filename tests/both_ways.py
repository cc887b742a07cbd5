"""Runs pieces of script once in plain torch and once on ranks, and compares values and gradients.

A sharded result is compared row by row on each rank, without a collective: many pieces take little time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ronde.tensor import rules
from ronde.tensor.global_tensor import GlobalTensor, cut, materialize, wrap
from ronde.tensor.layout import Layout
from ronde.testing.run_ranks import Rank

__all__ = ["ROWS", "Inputs", "compare", "compare_all", "differences", "flat", "sharded"]

ROWS = 7


@dataclasses.dataclass(slots=True)
class _Leaf:
    """Where a gradient is read, and how the tensor is cut there (not at all for None)."""

    tensor: torch.Tensor
    layout: Layout | None


class Inputs:
    """Makes equal tensors for both runs: plain ones, or global ones when there is a session."""

    def __init__(self, session: Any = None) -> None:
        self.session = session
        self.generator = torch.Generator().manual_seed(1)
        self.leaves: list[_Leaf] = []

    def values(self, *shape: int, low: float = 0.2, high: float = 0.8, integer: bool = False) -> torch.Tensor:
        if integer:
            return torch.randint(int(low), int(high), shape, generator=self.generator)
        return torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low

    def leaf(self, *shape: int, grad: bool = True, **kinds: Any) -> torch.Tensor:
        """A replicated leaf."""
        return self._watched(self.values(*shape, **kinds), None, grad)

    def inner(self, *shape: int) -> torch.Tensor:
        """A replicated value in the midst of a graph."""
        return self.leaf(*shape) * 1.0

    def shard(self, value: torch.Tensor, dim: int = 0, *, outer: int = 1, inner: int = 1) -> torch.Tensor:
        """A replicated value as a model would return it: this rank's rows only."""
        if self.session is None:
            return value.clone()
        layout = self._layout(value, dim, outer, inner)
        return wrap(
            self.session.context, cut(self.session.context, value, layout).clone(), layout, rules.table()
        )

    def batch(
        self, *shape: int, dim: int = 0, outer: int = 1, inner: int = 1, grad: bool = True, **kinds: Any
    ) -> torch.Tensor:
        """A batch of which each rank holds rows; its gradient is read on each rank's rows."""
        value = self.values(*shape, **kinds)
        layout = self._layout(value, dim, outer, inner)
        if self.session is None:
            return self._watched(value, layout, grad).clone()
        context = self.session.context
        local = self._watched(layout.take(value, context.rank).clone(), layout, grad)
        return wrap(context, local.clone(), layout, rules.table())

    def _layout(self, value: torch.Tensor, dim: int, outer: int, inner: int) -> Layout:
        world_size = 1 if self.session is None else self.session.context.world_size
        return Layout(dim, value.shape[dim] // (outer * inner), world_size, outer, inner)

    def _watched(self, value: torch.Tensor, layout: Layout | None, grad: bool) -> torch.Tensor:
        if grad and value.is_floating_point():
            value.requires_grad_()
            self.leaves.append(_Leaf(value, layout))
        return value


def flat(value: Any) -> Iterator[Any]:
    """Every leaf of nested results."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from flat(item)
    else:
        yield value


def sharded(value: Any) -> bool:
    return isinstance(value, GlobalTensor) and value._local is not None


class _Trial:
    """One run of one piece."""

    def __init__(self, case: Callable[[Inputs], Any], session: Any = None) -> None:
        self.inputs = Inputs(session)
        torch.manual_seed(5)
        self.results = list(flat(case(self.inputs)))

    def totals(self) -> Iterator[torch.Tensor]:
        """A weighted sum of every result that has a gradient."""
        generator = torch.Generator().manual_seed(2)
        for value in self.results:
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                continue
            weights = torch.rand(tuple(value.shape), generator=generator, dtype=torch.float64)
            if sharded(value):
                # Of a sum over shards each rank has a part; the mean over ranks is to be the whole.
                mine = value._layout.take(weights, value._context.rank)
                yield (value._local * mine).sum() * value._context.world_size
            else:
                yield (materialize(value) * weights).sum()


def _differing(plain: _Trial, ours: _Trial, tolerance: float, kept: bool) -> Iterator[str]:
    rank = ours.inputs.session.context.rank
    world_size = ours.inputs.session.context.world_size
    if len(plain.results) != len(ours.results):
        yield f"{len(ours.results)} results instead of {len(plain.results)}"
        return
    for place, (a, b) in enumerate(zip(plain.results, ours.results, strict=True)):
        if sharded(b):
            if a.shape != b.shape or b._layout.size != a.shape[b._layout.dim]:
                yield f"result {place} has shape {list(b.shape)} cut as {b._layout}, expected {list(a.shape)}"
                continue
            a, b = b._layout.take(a, rank), b._local
        elif kept and isinstance(b, torch.Tensor):
            yield f"result {place} is not sharded"
        yield from (f"result {place} {text}" for text in differences(a, materialize(b), tolerance))
    if len(plain.inputs.leaves) != len(ours.inputs.leaves):
        yield f"{len(ours.inputs.leaves)} leaves"
        return
    for place, (a, b) in enumerate(zip(plain.inputs.leaves, ours.inputs.leaves, strict=True)):
        expected, found = a.tensor.grad, b.tensor.grad
        if expected is not None and found is not None and b.layout is not None:
            expected, found = b.layout.take(expected, rank), found / world_size
        yield from (f"gradient {place} {text}" for text in differences(expected, found, tolerance))


def differences(a: Any, b: Any, tolerance: float) -> Iterator[str]:
    """How a value differs from the expected one, in words."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        a, b = a.detach(), b.detach()
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"is {list(b.shape)} {b.dtype}, expected {list(a.shape)} {a.dtype}"
        elif a.is_floating_point():
            if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
                yield f"of shape {list(a.shape)} is off by {(a - b).abs().max():.2g}"
        elif not torch.equal(a, b):
            yield f"of shape {list(a.shape)} {a.dtype} differs"
    elif isinstance(a, float) and isinstance(b, float):
        if not (abs(a - b) <= tolerance * max(1.0, abs(a)) or (a != a and b != b)):
            yield f"is {b}, expected {a}"
    elif type(a) is not type(b) or a != b:
        yield f"is {b!r}, expected {a!r}"


def compare_all(
    rank: Rank, cases: Mapping[str, Callable[[Inputs], Any]], *, kept: bool = False, tolerance: float = 1e-12
) -> list[str]:
    """What differs between plain torch and this rank; with `kept`, also results that are not sharded."""
    plain = {label: _Trial(case) for label, case in cases.items()}
    _backward(plain.values())
    with rank.session() as session:
        ours = {label: _Trial(case, session) for label, case in cases.items()}
        _backward(ours.values())
        return [
            f"{label}: {text}"
            for label in cases
            for text in _differing(plain[label], ours[label], tolerance, kept)
        ]


def compare(rank: Rank, case: Callable[[Inputs], Any], **options: Any) -> list[str]:
    return compare_all(rank, {"": case}, **options)


def _backward(trials: Any) -> None:
    totals = [total for trial in trials for total in trial.totals()]
    if totals:
        sum(totals).backward()
