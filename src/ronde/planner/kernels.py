"""Seconds of a block: products by `l + F/(e peak) + bytes/(b bw)`, the rest by bytes moved."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ronde.planner.device import Device
from ronde.planner.graph import Attention, Matmul, ModelBlock
from ronde.planner.software import Software

__all__ = ["RankShare", "block_seconds", "gemm_seconds", "operations", "peak_of"]

Floats = NDArray[np.float64]

# After cutting, a size that is not a multiple of 64 costs some 28 % (BigScience's tables).
_TILE = 64
_MISFIT = 1.28
# Batched products of a head whose size is not a multiple of 8 leave the fast kernels.
_HEAD = 8
_SLOW_HEAD = 3.0
_FUSED_BACKWARD = 2.5
# Two products, the softmax with its mask, dropout, and one to bring heads together.
_UNFUSED = 5
# Without the fused softmax there are six operations in place of one: a cast to float32, the scale, the mask,
# the softmax, a cast back (Megatron-LM, `forward_torch_softmax`), and the mask is made for them.
_EAGER_SOFTMAX = 5


@dataclasses.dataclass(frozen=True, slots=True)
class RankShare:
    """The part of a block on a rank: samples, and tensor and context degrees.

    All are arrays, one entry per candidate.
    """

    samples: Floats
    tensor: Floats
    context: Floats


def peak_of(device: Device, precision: str) -> float:
    """Return the data sheet's FLOP/s in a precision, or in the nearest available."""
    for name in {
        "bf16": ("bf16", "fp16", "fp32"),
        "fp16": ("fp16", "bf16", "fp32"),
        "tf32": ("tf32", "fp32"),
    }.get(precision, ("fp32",)):
        if name in device.peak:
            return device.peak[name]
    return device.peak["fp32"]


def gemm_seconds(device: Device, precision: str, m: Floats, n: Floats, k: Floats, itemsize: float) -> Floats:
    """Return the seconds of a product of (m, k) and (k, n) by itself."""
    moved = itemsize * (m * n + m * k + n * k)
    return (
        device.gemm_floor
        + 2 * m * n * k / (device.gemm_efficiency * peak_of(device, precision))
        + moved / (device.gemm_bandwidth * device.bandwidth)
    )


def block_seconds(
    device: Device, software: Software, block: ModelBlock, shares: RankShare
) -> tuple[Floats, Floats]:
    """Return a block's forward and backward seconds for one micro-batch, without communication."""
    forward = np.zeros_like(shares.samples)
    backward = np.zeros_like(shares.samples)
    for matmul in block.matmuls:
        once = _product(device, software, matmul, shares) * matmul.count
        forward += once
        backward += 2 * once
    if block.attention is not None:
        there, back = _attention(device, software, block.attention, shares)
        forward += there
        backward += back
    whole = block.moved_whole / (shares.tensor if software.sequence_parallel else 1)
    values = (block.moved_cut / shares.tensor + whole) * shares.samples / shares.context
    moved = (
        values * software.itemsize / (device.copy_efficiency * device.bandwidth)
        + block.kernels * device.launch
    )
    return (forward + moved) / device.sustained, (backward + 2 * moved) / device.sustained


def operations(block: ModelBlock, software: Software, shares: RankShare) -> Floats:
    """Return the operations that the host starts in a block's forward, without collectives.

    A captured graph is started as a whole, by none of its blocks.

    Backward counts as many: it has twice the products, which are started without Python.
    """
    products = sum(matmul.count for matmul in block.matmuls)
    attention = np.zeros_like(shares.samples)
    if block.attention is not None:
        attention += 1 if block.attention.fused else _UNFUSED
        attention += _EAGER_SOFTMAX * _falls_back(block.attention, software, shares)
    if software.kernels == "captured":
        return np.zeros_like(shares.samples)
    between = min(products + 1, block.kernels) if software.kernels == "fused" else block.kernels
    return products + attention + between


def _falls_back(attention: Attention, software: Software, shares: RankShare) -> Floats:
    """Return 1.0 where a rank has too few heads for the fused softmax."""
    heads = np.ceil(shares.samples) * attention.heads // shares.tensor
    return np.where((heads % software.fused_heads != 0) & (not attention.fused), 1.0, 0.0)


def _product(device: Device, software: Software, matmul: Matmul, shares: RankShare) -> Floats:
    rows = matmul.rows * shares.samples / shares.context
    n = matmul.n / shares.tensor if matmul.cut == "columns" else np.full_like(rows, matmul.n)
    k = matmul.k / shares.tensor if matmul.cut == "rows" else np.full_like(rows, matmul.k)
    cut = n if matmul.cut == "columns" else k
    misfit = (cut % _TILE != 0) & (cut > _TILE) & (matmul.cut != "whole") & (shares.tensor > 1)
    seconds = gemm_seconds(device, software.precision, rows, n, k, software.itemsize)
    return np.where(misfit, seconds * _MISFIT, seconds)


def _attention(
    device: Device, software: Software, attention: Attention, shares: RankShare
) -> tuple[Floats, Floats]:
    part = shares.samples / shares.context
    if attention.divided:
        part = part / shares.tensor
    peak = peak_of(device, software.precision)
    if attention.fused:
        seconds = attention.flops * part / (device.attention_efficiency * peak) + device.launch
        return seconds, _FUSED_BACKWARD * seconds
    slow = _SLOW_HEAD if attention.head_size % _HEAD else 1.0
    products = slow * attention.flops * part / (device.gemm_efficiency * peak)
    item = part * software.itemsize / device.bandwidth
    products = products + 2 * attention.scores * item / device.gemm_bandwidth
    seconds = products + attention.values * item / device.copy_efficiency + 4 * device.launch
    return seconds, 2 * seconds
