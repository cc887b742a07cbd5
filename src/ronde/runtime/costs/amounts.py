"""Counted amounts of a part of a model, and their JSON form.

The planner makes a cost graph of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ronde.runtime.costs.divided import Cut

__all__ = ["ForwardAmounts", "Product"]


@dataclasses.dataclass(slots=True)
class Product:
    """Matrix product with weights, (rows, k) by (k, n), which tensor parallelism may cut."""

    rows: int
    n: int
    k: int
    cut: Cut
    count: int = 1


@dataclasses.dataclass(slots=True)
class ForwardAmounts:
    """Amounts of forward of one step, over all rows of the batch.

    Attributes:
        products: products with weights, and convolutions expressed as such.
        attention_flops, head_size: of fused attention, and of products between activations.
        keys: numbers of keys and values of fused attention.
        attention_divided: whether tensor parallelism divides these.
        moved: numbers that other operations read and write.
        kernels: number of these other operations.
        saved, masks: amounts kept for backward: floating-point numbers, and bytes of all else.
        saved_bytes: bytes of both.
        results: part of `saved` that is results of products.
        saved_cut, masks_cut, moved_cut, parameters_cut: parts that tensor parallelism divides.
        parameters: numbers of its own, those of experts among them.
        tables: numbers of look-up tables that tensor parallelism divides.
        parameters_routed, routed: numbers of experts, and numbers handed to them.
        output: numbers that the last call gave.
        calls: number of runs.
    """

    products: list[Product] = dataclasses.field(default_factory=list)
    attention_flops: float = 0.0
    head_size: int = 0
    keys: float = 0.0
    attention_divided: bool = False
    moved: float = 0.0
    kernels: int = 0
    saved: float = 0.0
    masks: float = 0.0
    saved_bytes: float = 0.0
    results: float = 0.0
    saved_cut: float = 0.0
    masks_cut: float = 0.0
    moved_cut: float = 0.0
    parameters: float = 0.0
    parameters_cut: float = 0.0
    tables: float = 0.0
    parameters_routed: float = 0.0
    routed: float = 0.0
    output: float = 0.0
    calls: int = 0

    def fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
