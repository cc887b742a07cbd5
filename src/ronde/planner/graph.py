"""The cost graph: compute, saved values and messages of one step of a model.

It does not depend on the placement on devices.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

__all__ = ["KERNELS", "Attention", "CostGraph", "Cut", "Kernels", "Matmul", "ModelBlock"]

Cut = Literal["columns", "rows", "whole"]
Kernels = Literal["eager", "fused", "captured"]
KERNELS: tuple[Kernels, ...] = get_args(Kernels)
"""Ways in which a model's operations start."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Matmul:
    """A product of activations (rows x k) and weights (k x n) in forward.

    Backward has two of its size.

    Attributes:
        rows: rows for each sample.
        n, k: sizes of the weights, uncut.
        cut: the dimension that tensor parallelism divides: `n` (columns), `k` (rows), or none (whole).
        count: the number of such products in a block.
    """

    rows: float
    n: int
    k: int
    cut: Cut = "whole"
    count: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The part of a block between queries and values, divided by heads.

    Attributes:
        flops: FLOPs of forward, for each sample.
        values: numbers read and written for each sample where it is not fused: scores, softmax, dropout.
        saved, masks: values kept for backward, for each sample: numbers, and further bytes.
        fused: whether one kernel does it all (flash attention).
        head_size: numbers of a head.
        scores: numbers that one product writes and the next reads, for each sample; 0 where it is fused.
        keys: numbers of keys and values, for each sample.
        heads: number of heads; 0 where it is not known.
        divided: whether tensor parallelism divides it.
    """

    flops: float
    values: float
    saved: float
    masks: float
    fused: bool
    head_size: int
    scores: float = 0.0
    keys: float = 0.0
    heads: int = 0
    divided: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelBlock:
    """A part of a model; a pipeline may cut between two of them.

    All amounts are for one sample, in forward.

    Attributes:
        parameters_cut, parameters_whole: numbers that tensor parallelism divides, and numbers that it
            repeats; those of experts apart.
        parameters_routed: numbers of experts, which expert and tensor parallelism divide.
        routed: numbers handed to experts; they give back as many.
        matmuls: products with weights.
        attention: the attention, or None.
        moved_cut, moved_whole: numbers that element-wise work reads and writes.
        kernels: operations other than products.
        saved_cut, saved_whole: numbers kept for backward, attention's own left out.
        masks_cut, masks_whole: bytes kept for backward that no precision changes.
        output: numbers handed to the next block.
        exchanges: all-reduces of `output` that tensor parallelism needs in forward.
        results: numbers in `saved_cut` and `saved_whole` that are results of products: `recompute=selective`
            keeps these.
        repeated: whether it is one of the blocks that `recompute` computes again.
        table: whether its parameters are rows of which a step reads some.
    """

    name: str
    parameters_cut: float = 0.0
    parameters_whole: float = 0.0
    parameters_routed: float = 0.0
    routed: float = 0.0
    matmuls: tuple[Matmul, ...] = ()
    attention: Attention | None = None
    moved_cut: float = 0.0
    moved_whole: float = 0.0
    kernels: float = 0.0
    saved_cut: float = 0.0
    saved_whole: float = 0.0
    masks_cut: float = 0.0
    masks_whole: float = 0.0
    output: float = 0.0
    exchanges: int = 0
    results: float = 0.0
    repeated: bool = False
    table: bool = False

    @property
    def parameters(self) -> float:
        return self.parameters_cut + self.parameters_whole + self.parameters_routed

    @property
    def flops(self) -> float:
        """The FLOPs of forward, for one sample."""
        products = sum(2 * each.rows * each.n * each.k * each.count for each in self.matmuls)
        return products + (self.attention.flops if self.attention else 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CostGraph:
    """Cost description of a training step.

    Attributes:
        name: the name of the model or script.
        batch: samples of a global batch.
        tokens: tokens of a sample; 1 where samples have none.
        first, block, last: the part before repeated blocks, one of these, and the part after them.
        layers: the number of blocks.
        heads: heads of attention, which tensor parallelism divides; 0 where tensor parallelism is not known.
        tied: numbers of parameters that `first` and `last` share.
        slots: numbers that the optimizer keeps for each parameter.
        itemsize: bytes of a parameter in the script's own dtype.
        experts: experts of a block; 1 without.
        kernels: the way in which its operations start; not `eager` where the script compiles it.
        loss_apart: whether the script computes its loss behind the model: pipelines run GPipe's order.
        source: the origin of the graph.
    """

    name: str
    batch: int
    tokens: int
    first: ModelBlock
    block: ModelBlock
    last: ModelBlock
    layers: int
    heads: int
    tied: float = 0.0
    slots: int = 2
    itemsize: int = 4
    experts: int = 1
    kernels: Kernels = "eager"
    loss_apart: bool = False
    source: str = ""

    @property
    def parameters(self) -> float:
        """The number of all parameters, shared ones once."""
        every = self.first.parameters + self.block.parameters * self.layers + self.last.parameters
        return every - self.tied

    @property
    def step_flops(self) -> float:
        """The FLOPs of forward and backward of a global batch, without recomputation."""
        return 3 * self.batch * (self.first.flops + self.block.flops * self.layers + self.last.flops)
