"""What was counted of a part of a model, and its JSON: the planner makes a cost graph of it."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Part", "Product"]


@dataclasses.dataclass(slots=True)
class Product:
    """A product with weights, of (rows, k) and (k, n); `after` attention or before."""

    rows: int
    n: int
    k: int
    after: bool
    count: int = 1


@dataclasses.dataclass(slots=True)
class Part:
    """Amounts of forward of one step, over all rows of the batch.

    Attributes:
        products: with weights, and convolutions as such.
        attention_flops, head_size: of fused attention, and of products between activations.
        moved: numbers that other operations read and write.
        kernels: how many of these there were.
        saved, masks: kept for backward: floating-point numbers, and bytes of all else.
        saved_bytes: of both.
        results: of `saved`, results of products.
        cut: of `saved`, what is between products or heads: tensor parallelism divides it.
        parameters: numbers of its own.
        output: numbers that the last call gave.
        calls: how often it ran.
    """

    products: list[Product] = dataclasses.field(default_factory=list)
    attention_flops: float = 0.0
    head_size: int = 0
    moved: float = 0.0
    kernels: int = 0
    saved: float = 0.0
    masks: float = 0.0
    saved_bytes: float = 0.0
    results: float = 0.0
    cut: float = 0.0
    parameters: float = 0.0
    output: float = 0.0
    calls: int = 0

    def fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
