"""Sparse row optimizers: only rows with a gradient are updated.

A row's state is stored next to its embedding. Hyper-parameters are those of torch's optimizer of the same
name. With a learning rate of None, each update brings one: that of the script's optimizer, so its schedulers
apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ronde.errors import UsageError
from ronde.server.table.compiled import compiled, prefetch

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "RowOptimizer", "RowwiseAdagrad"]

_CHUNK = 64


def _check(name: str, **at_least_nought: float | None) -> None:
    for key, value in at_least_nought.items():
        if value is not None and not value >= 0:
            raise UsageError(f"{name}({key}={value}): {key} must be at least 0 [R461]")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: `w -= lr (g + weight_decay w)`."""

    lr: float | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("SGD", lr=self.lr, weight_decay=self.weight_decay)

    def state(self, dim: int) -> int:
        """Return the number of state floats of a row."""
        return 0

    state_start = 0.0

    def step(self, rows: TouchedRows, number: int, lr: float) -> None:
        """Apply update `number` (from 1) of the table."""
        rows.run(_sgd, lr, self.weight_decay)


@dataclass(frozen=True)
class Adagrad:
    """Adagrad, like `torch.optim.Adagrad`: `s += g^2; w -= lr g / (sqrt(s) + eps)`.

    Source: Duchi, Hazan, Singer, 2011.
    """

    lr: float | None = None
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        start = self.initial_accumulator_value
        _check(type(self).__name__, lr=self.lr, eps=self.eps, initial_accumulator_value=start)

    def state(self, dim: int) -> int:
        """Return the number of state floats of a row."""
        return dim

    @property
    def state_start(self) -> float:
        return self.initial_accumulator_value

    def step(self, rows: TouchedRows, number: int, lr: float) -> None:
        """Apply update `number` (from 1) of the table."""
        rows.run(_adagrad, lr, self.eps)


@dataclass(frozen=True)
class RowwiseAdagrad(Adagrad):
    """Row-wise Adagrad, with one state float per row, as in DLRM and FBGEMM.

    `s += mean(g^2); w -= lr g / (sqrt(s) + eps)`.
    """

    def state(self, dim: int) -> int:
        """Return the number of state floats of a row."""
        return 1

    def step(self, rows: TouchedRows, number: int, lr: float) -> None:
        """Apply update `number` (from 1) of the table."""
        rows.run(_rowwise_adagrad, lr, self.eps)


@dataclass(frozen=True)
class Adam:
    """Adam on the rows that have a gradient, like `torch.optim.SparseAdam`. Source: Kingma, Ba, 2014.

    Bias correction counts the table's updates, not the row's.
    """

    lr: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check("Adam", lr=self.lr, eps=self.eps)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"Adam(betas={self.betas}): each must be at least 0 and less than 1 [R461]")

    def state(self, dim: int) -> int:
        """Return the number of state floats of a row."""
        return 2 * dim

    state_start = 0.0

    def step(self, rows: TouchedRows, number: int, lr: float) -> None:
        """Apply update `number` (from 1) of the table."""
        first, second = self.betas
        size = lr * (1 - second**number) ** 0.5 / (1 - first**number)
        rows.run(_adam, size, self.eps, first, second)


@dataclass(frozen=True)
class FTRL:
    """FTRL-Proximal, for sparse logistic regression. Source: McMahan et al., "Ad Click Prediction: a View
    from the Trenches", 2013.

    A row w with gradient g, its sum of squares s and its linear term z::

        s' = s + g^2;  z += g - (sqrt(s') - sqrt(s)) w / lr
        w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(s')) / lr + l2)
    """

    lr: float | None = None
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        _check("FTRL", lr=self.lr, beta=self.beta, l1=self.l1, l2=self.l2)

    def state(self, dim: int) -> int:
        """Return the number of state floats of a row."""
        return 2 * dim

    state_start = 0.0

    def step(self, rows: TouchedRows, number: int, lr: float) -> None:
        """Apply update `number` (from 1) of the table."""
        rows.run(_ftrl, lr, self.beta, self.l1, self.l2)


RowOptimizer = SGD | Adagrad | RowwiseAdagrad | Adam | FTRL


@dataclass(frozen=True)
class TouchedRows:
    """The rows of an update, in the form that an optimizer takes.

    `values` is [rows, words], `slots` the row numbers (int64 [n]), `gradients` [n, dim]. The embedding begins
    in column `first`, followed by the state.
    """

    values: np.ndarray[Any, Any]
    slots: np.ndarray[Any, Any]
    gradients: np.ndarray[Any, Any]
    first: int

    def run(self, update: Callable[..., None], *numbers: float) -> None:
        """Call a compiled update; `numbers` are converted to the rows' dtype."""
        own = self.values.dtype.type
        update(self.values, self.slots, self.gradients, self.first, *(own(each) for each in numbers))


@compiled
def _sgd(values: Any, slots: Any, gradients: Any, first: Any, lr: Any, decay: Any) -> None:
    dim = gradients.shape[1]
    for begin in range(0, slots.shape[0], _CHUNK):
        end = min(begin + _CHUNK, slots.shape[0])
        for i in range(begin, end):
            prefetch(values, slots[i], 0)
        for i in range(begin, end):
            row = values[slots[i]]
            for c in range(dim):
                row[first + c] -= lr * (gradients[i, c] + decay * row[first + c])


@compiled
def _adagrad(values: Any, slots: Any, gradients: Any, first: Any, lr: Any, eps: Any) -> None:
    dim = gradients.shape[1]
    for begin in range(0, slots.shape[0], _CHUNK):
        end = min(begin + _CHUNK, slots.shape[0])
        for i in range(begin, end):
            prefetch(values, slots[i], 0)
        for i in range(begin, end):
            row = values[slots[i]]
            for c in range(dim):
                g = gradients[i, c]
                row[first + dim + c] += g * g
                row[first + c] -= lr * g / (np.sqrt(row[first + dim + c]) + eps)


@compiled
def _rowwise_adagrad(values: Any, slots: Any, gradients: Any, first: Any, lr: Any, eps: Any) -> None:
    dim = gradients.shape[1]
    for begin in range(0, slots.shape[0], _CHUNK):
        end = min(begin + _CHUNK, slots.shape[0])
        for i in range(begin, end):
            prefetch(values, slots[i], 0)
        for i in range(begin, end):
            row = values[slots[i]]
            squares = lr * 0
            for c in range(dim):
                squares += gradients[i, c] * gradients[i, c]
            row[first + dim] += squares / dim
            size = lr / (np.sqrt(row[first + dim]) + eps)
            for c in range(dim):
                row[first + c] -= size * gradients[i, c]


@compiled
def _adam(
    values: Any, slots: Any, gradients: Any, first: Any, size: Any, eps: Any, beta1: Any, beta2: Any
) -> None:
    dim = gradients.shape[1]
    one = beta1 * 0 + 1
    for begin in range(0, slots.shape[0], _CHUNK):
        end = min(begin + _CHUNK, slots.shape[0])
        for i in range(begin, end):
            prefetch(values, slots[i], 0)
        for i in range(begin, end):
            row = values[slots[i]]
            for c in range(dim):
                g = gradients[i, c]
                mean, square = first + dim + c, first + 2 * dim + c
                row[mean] += (one - beta1) * (g - row[mean])
                row[square] += (one - beta2) * (g * g - row[square])
                row[first + c] -= size * row[mean] / (np.sqrt(row[square]) + eps)


@compiled
def _ftrl(values: Any, slots: Any, gradients: Any, first: Any, lr: Any, beta: Any, l1: Any, l2: Any) -> None:
    dim = gradients.shape[1]
    for begin in range(0, slots.shape[0], _CHUNK):
        end = min(begin + _CHUNK, slots.shape[0])
        for i in range(begin, end):
            prefetch(values, slots[i], 0)
        for i in range(begin, end):
            row = values[slots[i]]
            for c in range(dim):
                g = gradients[i, c]
                square, linear = first + dim + c, first + 2 * dim + c
                before = np.sqrt(row[square])
                row[square] += g * g
                root = np.sqrt(row[square])
                row[linear] += g - (root - before) / lr * row[first + c]
                z = row[linear]
                if abs(z) <= l1:
                    row[first + c] = 0
                else:
                    row[first + c] = -(z - np.sign(z) * l1) / ((beta + root) / lr + l2)
