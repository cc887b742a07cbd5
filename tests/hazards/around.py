"""What scripts do around a model: memory shared behind its back, batches cut and doubled, odd orders."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from hazards.harness import Hazard, data, loader, train

T = torch.Tensor


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def _changed(change: Callable[[T, T], Any]) -> Callable[[], Iterator[Any]]:
    """The batch is changed in place, by one of the many ways to its memory, before the model sees it."""

    def call(m: Any, x: T, y: T) -> T:
        change(x, y)
        return m(x)

    return lambda: train(_net(), call=call)


def _result_changed(change: Callable[[T, T], Any]) -> Callable[[], Iterator[Any]]:
    """The same with what the model returns, in evaluation."""

    def call(m: Any, x: T, y: T) -> T:
        out = m(x)
        if not torch.is_grad_enabled():
            change(out, y)
        return out

    return lambda: train(_net(), call=call)


def _by_numpy(x: T, y: T) -> None:
    x.numpy()[:, 0] *= 3


def _by_view(x: T, y: T) -> None:
    x[:, :2].mul_(3)


def _by_row(x: T, y: T) -> None:
    row = x[1]
    row += 1


def _by_rows(x: T, y: T) -> None:
    for row, label in zip(x, y, strict=True):
        if label == 1:
            row.zero_()


def _by_flat(x: T, y: T) -> None:
    x.view(-1)[::3] = 0.5


def _by_transposed(x: T, y: T) -> None:
    x.t()[1] *= 2


def _by_detached(x: T, y: T) -> None:
    x.detach().clamp_(-0.5, 0.5)


def _by_data(x: T, y: T) -> None:
    x.data.add_(1)


def _by_mask(x: T, y: T) -> None:
    x[y == 1] = 0.25


def _by_out(x: T, y: T) -> None:
    torch.mul(x, 2, out=x)


def _cut_and_mixed(x: T, y: T) -> None:
    x[:, 1:3] = x[torch.randperm(len(x))][:, 1:3]


def _in_pieces() -> Iterator[Any]:
    """Micro-batches made by hand; the last one is smaller."""
    model = _net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader():
        optimizer.zero_grad()
        for part, labels in zip(x.split(3), y.split(3), strict=True):
            loss = F.cross_entropy(model(part), labels, reduction="sum") / len(x)
            loss.backward()
            yield loss.item()
        optimizer.step()
    yield [value.detach().clone() for value in model.parameters()]


def _doubled() -> Iterator[Any]:
    """Two noisy forms of a batch as one, and a loss between them."""

    def call(m: Any, x: T, y: T) -> T:
        return m(torch.cat([x, x + 0.1 * torch.randn_like(x)]))

    def loss(out: T, y: T) -> T:
        first, second = out.chunk(2)
        return F.cross_entropy(first, y) + F.mse_loss(second, first.detach())

    yield from train(_net(), call=call, loss=loss)


def _row_by_row() -> Iterator[Any]:
    yield from train(_net(), call=lambda m, x, y: torch.cat([m(row[None]) for row in x]))


def _orders_by_address() -> Iterator[Any]:
    """`set(model.parameters())` has another order in each process."""
    model = _net().double()
    parameters = list(model.parameters())
    random.Random(os.getpid()).shuffle(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for x, y in loader():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
        yield loss.item()
    yield [value.detach().clone() for value in model.parameters()]


def _spectral() -> Iterator[Any]:
    """Each forward in training moves the vectors of a power iteration on."""
    yield from train(
        nn.Sequential(
            torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)
        )
    )


def _saved_elsewhere() -> Iterator[Any]:
    def call(m: Any, x: T, y: T) -> T:
        with torch.autograd.graph.save_on_cpu():
            return m(x)

    yield from train(_net(), call=call)


def _dataset_changed() -> Iterator[Any]:
    """A batch that is a view of the data: what is changed there stays changed."""
    rows = data(rows=16)

    class Whole:
        dataset = rows

        def __iter__(self) -> Iterator[Any]:
            for start in (0, 8):
                yield rows.tensors[0][start : start + 8], rows.tensors[1][start : start + 8]

    def call(m: Any, x: T, y: T) -> T:
        if torch.is_grad_enabled():
            x.mul_(0.9)
        return m(x)

    yield from train(_net(), call=call, batches=Whole())
    yield rows.tensors[0].clone()


class _Means(TorchFunctionMode):
    """Keeps statistics of every layer's result."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[T] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear:
            self.means.append(result.detach().abs().mean())
        return result


def _watched_by_functions() -> Iterator[Any]:
    with _Means() as mode:
        yield from train(_net())
    yield mode.means


def _watched_by_dispatch() -> Iterator[Any]:
    with FlopCounterMode(display=False) as mode:
        yield from train(_net())
    yield mode.get_total_flops()


def _coarse(value: T) -> T:
    return (value / value.abs().max() * 64).round() / 64 if value.is_floating_point() else value


def _saved_coarsely() -> Iterator[Any]:
    """Activations in few bits, by the largest of them: of the whole batch, not of a rank's rows."""
    with torch.autograd.graph.saved_tensors_hooks(_coarse, lambda value: value):
        yield from train(_net())


def _tangents() -> Iterator[Any]:
    """Derivatives in forward mode: of a model by its batch, in training too, and by what it returns."""
    model, frozen = _net().double(), _net().double().requires_grad_(False)
    for x, _ in loader():
        with forward_ad.dual_level():
            for net in (model, frozen):
                primal, tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(x, x * x)))
                yield [primal.detach(), tangent.detach()]
            model.zero_grad()
            forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))).tangent.square().mean().backward()
            yield [parameter.grad for parameter in model.parameters()]
            out = model(x).detach()
            yield forward_ad.unpack_dual(forward_ad.make_dual(out, out + 1) ** 3).tangent


HAZARDS = {
    "changed by a view": Hazard(_changed(_by_view), "right"),
    "changed by a row": Hazard(_changed(_by_row), "right"),
    "changed by rows": Hazard(_changed(_by_rows), "right"),
    "changed by a flat view": Hazard(_changed(_by_flat), "right"),
    "changed by its transpose": Hazard(_changed(_by_transposed), "right"),
    "changed by detach": Hazard(_changed(_by_detached), "right"),
    "changed by data": Hazard(_changed(_by_data), "right"),
    "changed by a mask": Hazard(_changed(_by_mask), "right"),
    "changed by out": Hazard(_changed(_by_out), "right"),
    "parts of rows exchanged": Hazard(_changed(_cut_and_mixed), "right"),
    "result changed by numpy": Hazard(_result_changed(_by_numpy), "right"),
    "result changed by a view": Hazard(_result_changed(_by_view), "right"),
    "result changed by rows": Hazard(_result_changed(_by_rows), "right"),
    "result changed by detach": Hazard(_result_changed(_by_detached), "right"),
    "result changed by data": Hazard(_result_changed(_by_data), "right"),
    "result changed by a mask": Hazard(_result_changed(_by_mask), "right"),
    "result changed by a flat view": Hazard(_result_changed(_by_flat), "right"),
    "result changed by its transpose": Hazard(_result_changed(_by_transposed), "right"),
    "in pieces": Hazard(_in_pieces, "right"),
    "doubled": Hazard(_doubled, "right"),
    "row by row": Hazard(_row_by_row, "right"),
    "parameters in another order": Hazard(_orders_by_address, "right"),
    "spectral norm": Hazard(_spectral, "right"),
    "watched by a function mode": Hazard(
        _watched_by_functions, "parts", "_Means, a torch function mode, sees"
    ),
    "watched by a dispatch mode": Hazard(_watched_by_dispatch, "parts", "a torch dispatch mode, sees"),
    "in forward mode": Hazard(_tangents, "parts", "forward-mode differentiation"),
    "saved coarsely": Hazard(_saved_coarsely, "parts", "saved_tensors_hooks sees"),
    "saved on the CPU": Hazard(_saved_elsewhere, "right"),
    "data changed by a batch": Hazard(_dataset_changed, "right"),
}
