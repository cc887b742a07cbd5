"""Modules that keep a size of their batch, or what they have made for it, from one call to the next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from hazards.harness import D, Hazard, Lambda, train

T = torch.Tensor

COUNTS = "the number of rows"


class Anchored(nn.Module):
    """As the heads of Ultralytics' detectors: anchors for a shape, of which the batch is a part."""

    shape: Any = None
    anchors = torch.empty(0)
    strides = torch.empty(0)

    def __init__(self) -> None:
        super().__init__()
        self.out, self.stride, self.made = nn.Conv2d(4, 3, 1), torch.tensor([2.0], dtype=D), 0

    def forward(self, x: T) -> T:
        shape = x.shape
        if self.shape != shape:
            self.anchors, self.strides = (each.transpose(0, 1) for each in self._anchors(x))
            self.shape, self.made = shape, self.made + 1
        return (self.out(x).flatten(2) + self.anchors.sum(0)) * self.strides

    def _anchors(self, x: T) -> tuple[T, T]:
        h, w = x.shape[2:]
        sy, sx = torch.meshgrid(torch.arange(h).type_as(x), torch.arange(w).type_as(x), indexing="ij")
        return torch.stack((sx, sy), -1).view(-1, 2), x.new_full((h * w, 1), self.stride[0], dtype=x.dtype)

    @property
    def seen(self) -> Any:
        return tuple(self.shape), self.made, tuple(self.anchors.shape)


class Gridded(nn.Module):
    """As YOLOv5's head: a grid for each height and width, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.ModuleList(nn.Conv2d(4, 6, 1) for _ in range(2))
        self.grid = [torch.empty(0) for _ in range(2)]
        self.anchor_grid = [torch.empty(0) for _ in range(2)]
        self.register_buffer("anchors", torch.rand(2, 2, 2, dtype=D))

    def forward(self, x: T) -> T:
        found = []
        for i, layer in enumerate(self.m):
            y = layer(x)
            bs, _, ny, nx = y.shape
            y = y.view(bs, 2, 3, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
            if self.grid[i].shape[2:4] != y.shape[2:4]:
                self.grid[i], self.anchor_grid[i] = self._grid(nx, ny, i)
            xy, rest = y.sigmoid().split((2, 1), 4)
            found.append(torch.cat(((xy + self.grid[i]) * self.anchor_grid[i], rest), 4).view(bs, -1, 3))
        return torch.cat(found, 1).transpose(1, 2)

    def _grid(self, nx: int, ny: int, i: int) -> tuple[T, T]:
        yv, xv = torch.meshgrid(torch.arange(ny, dtype=D), torch.arange(nx, dtype=D), indexing="ij")
        shape = 1, 2, ny, nx, 2
        return torch.stack((xv, yv), 2).expand(shape) - 0.5, self.anchors[i].view(1, 2, 1, 1, 2).expand(shape)

    @property
    def seen(self) -> Any:
        return [tuple(each.shape) for each in self.grid]


class Buffered(nn.Module):
    """Keeps the number of rows by itself, and counts how often that was another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.rows, self.changes = nn.Conv2d(4, 3, 1), 0, 0

    def forward(self, x: T) -> T:
        if x.size(0) != self.rows:
            self.rows, self.changes = x.size(0), self.changes + 1
        return self.a(x).view(self.rows, 3, -1)

    @property
    def seen(self) -> Any:
        return self.rows, self.changes


class Detector(nn.Module):
    def __init__(self, head: nn.Module, *, again: bool = False, own_loss: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.again = nn.Conv2d(1, 4, 3, padding=1), head, again
        self.own_loss = own_loss

    def forward(self, x: T) -> T:
        h = self.body(x).relu()
        found = checkpoint.checkpoint(self.head, h, use_reentrant=False) if self.again else self.head(h)
        out = found.mean(-1)
        return out.square().mean().sqrt() if self.own_loss and self.training else out


def _images(rows: int, size: int) -> T:
    return torch.linspace(-1, 1, rows * size * 4, dtype=D).sin().view(rows, 1, size, 4)


def _trained(model: Any, sizes: Sequence[tuple[int, int]]) -> Iterator[Any]:
    """Train and evaluate on batches of so many images, so high."""
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows, size in sizes:
        x = _images(rows, size)
        loss = model.train()(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
        yield model.head.seen
        model.eval()
        with torch.no_grad():
            yield model(_images(rows - 1, size))
        yield model.head.seen


# Some sizes come twice, others change with each call; none is a part of the one before it, on 2 or 3 ranks.
_SIZES = [(8, 4), (8, 4), (8, 6), (9, 6), (11, 4), (8, 4), (11, 8), (8, 5), (9, 5), (8, 7), (8, 7), (10, 4)]


def _detects(head: Callable[[], nn.Module], sizes: Sequence[tuple[int, int]] = _SIZES, **options: Any) -> Any:
    return lambda: _trained(Detector(head(), **options), sizes)


def _copied() -> Iterator[Any]:
    """Call a copy on as many rows as the model: of its shape nobody knows that it counts them."""
    model = Detector(Anchored()).double()
    x = _images(8, 4)
    yield model(x)
    copies = copy.deepcopy(model)
    yield copies(x)
    yield copies.head.seen
    yield copies(_images(10, 4))
    yield copies.head.seen


def _in_turns() -> Iterator[Any]:
    """Two forward passes on batches of other sizes, and then their backward passes."""
    model = Detector(Anchored(), again=True).double()
    for _ in range(3):
        losses = [model(_images(rows, 4)).square().mean() for rows in (8, 10)]
        for each in losses:
            each.backward()
            yield model.head.seen
        yield [each.grad for each in model.parameters()]


def _counts() -> Iterator[Any]:
    def forward(m: Any, x: T) -> T:
        m.total += len(x)
        return m.a(x)

    model = Lambda(forward, a=nn.Linear(4, 3))
    model.total = 0
    yield from train(model, seen=lambda: model.total)


HAZARDS = {
    "anchors": Hazard(_detects(Anchored), "whole"),
    "a grid in a list": Hazard(_detects(Gridded), "whole"),
    "a number of rows": Hazard(_detects(Buffered), "whole"),
    "anchors in a checkpoint": Hazard(_detects(Anchored, again=True), "whole"),
    "anchors in two checkpoints": Hazard(_in_turns, "whole"),
    "anchors of a detector with its own loss": Hazard(
        _detects(Anchored, own_loss=True), "parts", "no batch axis"
    ),
    # Of 4 rows, where each rank has 4 of 8 (or of 12).
    "as many as a part": Hazard(
        _detects(Anchored, [(5, 4), (8, 4), (5, 4), (12, 4), (12, 4)]), "parts", COUNTS
    ),
    "anchors of a copy": Hazard(_copied, "parts", COUNTS),
    "a sum of rows": Hazard(_counts, "parts", "on itself"),
}
