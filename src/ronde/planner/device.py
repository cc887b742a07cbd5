"""One kind of device in the cost model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["Device"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Constants of a device.

    Attributes:
        name: the maker's name of it.
        memory: bytes that a program may allocate.
        peak: FLOP/s of the data sheet, by dtype ("bf16", "fp16", "tf32", "fp32").
        bandwidth: bytes/s of the data sheet.
        gemm_floor: seconds that the smallest matrix product takes (`l`).
        gemm_efficiency: share of `peak` that large products reach (`e`).
        gemm_bandwidth: share of `bandwidth` at which products move their operands (`b`). More than 1 means
            that caches serve them.
        attention_efficiency: share of `peak` that fused attention reaches.
        copy_efficiency: share of `bandwidth` that element-wise work reaches.
        launch: the least seconds of any other operation.
        sustained: share of the speed of single kernels that a training keeps up.
        host: seconds of the host for each operation that eager code starts; 0 where the host computes itself.
    """

    name: str
    memory: float
    peak: Mapping[str, float]
    bandwidth: float
    gemm_floor: float
    gemm_efficiency: float
    gemm_bandwidth: float
    attention_efficiency: float
    copy_efficiency: float
    launch: float
    sustained: float
    host: float = 0.0
