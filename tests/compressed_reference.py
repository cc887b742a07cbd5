"""The compressed updates in one process, written from their equations: what ranks are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["REFERENCES", "Gradients", "gradients", "net"]

Gradients = list[list[torch.Tensor]]
"""Of each rank, of each parameter."""
Order = Sequence[Sequence[int]]
"""Which parameters lie in each bucket, and in what order."""
Reference = Callable[[Gradients, Order, int], list[torch.Tensor]]
"""What the optimizer steps on, from all ranks' gradients in a step."""


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 12), nn.Tanh(), nn.Linear(12, 3)).double()


def gradients(model: nn.Module, rank: int, step: int) -> None:
    """Of this rank's rows, accumulated as backward does."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(5, 6, dtype=torch.float64, generator=draw)
    targets = torch.randn(5, 3, dtype=torch.float64, generator=draw)
    nn.functional.mse_loss(model(inputs), targets).backward()


def _mean(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(parts)).sum(0) / len(parts)


class TensorByTensor:
    """u = m u + g; v = v + u; g = mean of C(v); v = v - C(v)."""

    def __init__(self, code: Callable[[torch.Tensor], torch.Tensor], momentum: float = 0.9) -> None:
        self._code, self._momentum = code, momentum
        self._u: dict[tuple[int, int], Any] = {}
        self._residual: dict[tuple[int, int], Any] = {}

    def __call__(self, all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for place in range(len(all_gradients[0])):
            sent: list[torch.Tensor] = []
            for rank, own in enumerate(all_gradients):
                u = self._momentum * self._u.get((rank, place), 0) + own[place]
                x = u + self._residual.get((rank, place), 0)
                self._u[rank, place] = u
                sent.append(self._code(x))
                self._residual[rank, place] = x - sent[-1]
            found.append(_mean(sent))
        return found


class Forgetful:
    """g = mean of C(g)."""

    def __init__(self, code: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._code = code

    def __call__(self, all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
        return [_mean([self._code(each) for each in own]) for own in zip(*all_gradients, strict=True)]


class ByChunks:
    """Each bucket in W chunks: g = C(mean of C(g_r))."""

    def __init__(self, code: Callable[[torch.Tensor], torch.Tensor], feedback: bool = False) -> None:
        self._code, self._feedback = code, feedback
        self._residual: dict[tuple[int, int], Any] = {}

    def __call__(self, all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
        ranks = len(all_gradients)
        found = [torch.zeros_like(each) for each in all_gradients[0]]
        for places in order:
            flats = []
            for rank, own in enumerate(all_gradients):
                parts = [own[place] + self._residual.get((rank, place), 0) for place in places]
                flats.append(torch.cat([part.reshape(-1) for part in parts]))
            length = -(-len(flats[0]) // ranks)
            sent = [torch.cat([self._code(chunk) for chunk in flat.split(length)]) for flat in flats]
            whole = torch.cat([self._code(chunk) for chunk in _mean(sent).split(length)])
            sizes = [found[place].numel() for place in places]
            for place, part in zip(places, whole.split(sizes), strict=True):
                found[place] = part.view_as(found[place])
            if self._feedback:
                for rank in range(ranks):
                    for place, lost in zip(places, (flats[rank] - sent[rank]).split(sizes), strict=True):
                        self._residual[rank, place] = lost.view_as(found[place])
        return found


class DeepGradientCompression:
    """u = m u + g; v = v + u; the largest of v travel, and both are nought there."""

    def __init__(self, density: float, momentum: float, warm_up: int = 0) -> None:
        self._density, self._momentum, self._warm_up = density, momentum, warm_up
        self._u: dict[tuple[int, int], Any] = {}
        self._v: dict[tuple[int, int], Any] = {}

    def __call__(self, all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
        density = self._density
        if step < self._warm_up:
            density = max(density, [1 / 4, 1 / 16, 1 / 64, 1 / 256][4 * step // self._warm_up])
        found: list[torch.Tensor] = []
        for place in range(len(all_gradients[0])):
            sent: list[torch.Tensor] = []
            for rank, own in enumerate(all_gradients):
                key = rank, place
                u = self._momentum * self._u.get(key, 0) + own[place]
                v = self._v.get(key, 0) + u
                mask = _largest(v, density)
                sent.append(v * mask)
                self._u[key], self._v[key] = u * (1 - mask), v * (1 - mask)
            found.append(_mean(sent))
        return found


class PowerSGD:
    """M = g + e; P = orthonormal(mean M Q); Q = mean M^T P; g = P Q^T; e = M - g."""

    def __init__(self, rank: int, first: Callable[[int], torch.Tensor], cut: Sequence[int]) -> None:
        self._first, self._cut = first, set(cut)
        self._q: dict[int, torch.Tensor] = {}
        self._residual: dict[tuple[int, int], Any] = {}

    def __call__(self, all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for place in range(len(all_gradients[0])):
            if place not in self._cut:
                found.append(_mean([own[place] for own in all_gradients]))
                continue
            matrices = [
                own[place] + self._residual.get((rank, place), 0) for rank, own in enumerate(all_gradients)
            ]
            q = self._q[place] if place in self._q else self._first(place)
            p = _gram_schmidt(_mean([matrix @ q for matrix in matrices]))
            self._q[place] = _mean([matrix.T @ p for matrix in matrices])
            found.append(p @ self._q[place].T)
            for rank, matrix in enumerate(matrices):
                self._residual[rank, place] = matrix - found[-1]
        return found


def _gram_schmidt(matrix: torch.Tensor) -> torch.Tensor:
    columns: list[torch.Tensor] = []
    for column in matrix.unbind(1):
        for before in columns:
            column = column - before * (before @ column)
        columns.append(column / column.norm())
    return torch.stack(columns, 1)


def _largest(values: torch.Tensor, density: float) -> torch.Tensor:
    flat = values.reshape(-1)
    count = max(1, round(density * len(flat)))
    mask = torch.zeros_like(flat)
    mask[flat.abs().argsort(descending=True)[:count]] = 1
    return mask.view_as(values)


def _int8(x: torch.Tensor) -> torch.Tensor:
    scale = 255 / (x.max() - x.min() + 1e-7)
    upper = (x.max() * scale).round()
    return torch.minimum((x * scale).round(), upper) / scale


def _onebit(x: torch.Tensor) -> torch.Tensor:
    return ((x >= 0).double() * 2 - 1) * x.abs().mean()


def _twobit(threshold: float | None) -> Callable[[torch.Tensor], torch.Tensor]:
    def code(x: torch.Tensor) -> torch.Tensor:
        level, cut = _ternary(x.abs()) if threshold is None else (threshold, threshold)
        return (x >= cut).double() * level - (x <= -cut).double() * level

    return code


def _ternary(sizes: torch.Tensor) -> tuple[Any, Any]:
    """Lloyd's: the level is the mean of what is behind the cut, and the cut half of the level."""
    cut = 0.75 * sizes.mean()
    for _ in range(8):
        cut = sizes[sizes >= cut].mean() / 2
    return sizes[sizes >= cut].mean(), cut


def _fp16(x: torch.Tensor) -> torch.Tensor:
    return x.half().double()


def _adasum(all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
    def pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = (a * b).sum()
        return a * (1 - product / (2 * (a * a).sum())) + b * (1 - product / (2 * (b * b).sum()))

    found: list[torch.Tensor] = []
    for place in range(len(all_gradients[0])):
        level = [own[place] for own in all_gradients]
        while len(level) > 1:
            level = [pair(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        found.append(level[0])
    return found


def _summed(factor: Callable[[int], float]) -> Reference:
    def reference(all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
        return [_mean(each) * factor(len(each)) for each in zip(*all_gradients, strict=True)]

    return reference


REFERENCES: dict[str, Callable[[], Reference]] = {
    "fp16-allreduce": lambda: ByChunks(_fp16),
    "compressor=bf16,error-feedback=true": lambda: ByChunks(lambda x: x.bfloat16().double(), feedback=True),
    "bytegrad": lambda: ByChunks(_int8),
    "onebit": lambda: TensorByTensor(_onebit),
    "twobit": lambda: TensorByTensor(_twobit(None)),
    "twobit,threshold=0.05": lambda: TensorByTensor(_twobit(0.05)),
    "compressor=onebit": lambda: Forgetful(_onebit),
    "dgc,density=0.02": lambda: DeepGradientCompression(0.02, 0.9),
    "dgc,density=0.02,warm-up=20": lambda: DeepGradientCompression(0.02, 0.9, warm_up=20),
    "reduction=sum": lambda: _summed(float),
    "predivide=1.5": lambda: _summed(lambda ranks: 1.0),
    "reduction=adasum": lambda: _adasum,
}
