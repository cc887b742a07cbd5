"""What a process group does to a tensor before it travels and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ronde.errors import UsageError
from ronde.patching.torch_internals import waited_for

__all__ = [
    "WIDER",
    "as_list",
    "contiguous",
    "divide",
    "give_back",
    "op_of",
    "plain",
    "reduction",
    "split_rows",
]

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
    "premul": dist.ReduceOp.PREMUL_SUM,
}
# Types that torch cannot add up, and what they travel as.
WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64}


def op_of(opts: Any) -> Any:
    """The reduction that is asked for; a sum where nothing is."""
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def as_list(tensors: Any) -> list[torch.Tensor]:
    """The tensors of a call that takes one or several."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def reduction(op: Any) -> tuple[str, Any]:
    """Name of the reduction, and by what values are multiplied first."""
    name = next((name for name, each in _OPS.items() if op == each), None)
    if name is None:
        raise UsageError(f"{op} is not reduced in shared memory; use one of {', '.join(_OPS)}")
    return ("sum", op.__getstate__()[1]) if name == "premul" else (name, None)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself of one that a functional collective has returned."""
    tensor = waited_for(tensor)
    if tensor.device.type != "cpu":
        raise UsageError(f"shared memory carries tensors on the CPU; this one is on {tensor.device}")
    return tensor


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it that lies in one piece."""
    return plain(tensor).contiguous()


def give_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Copy a result into a tensor that was not contiguous, or not of this type."""
    if flat is not tensor and flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat)


def divide(flat: torch.Tensor, number: int) -> None:
    """Make an average of a sum; whole numbers are cut."""
    whole = not (flat.is_floating_point() or flat.is_complex())
    flat.div_(number, rounding_mode="trunc" if whole else None)


def split_rows(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> Sequence[torch.Tensor]:
    """Each rank's rows: `sizes` of them, or equally many."""
    if not tensor.shape[0] and not sizes:
        return [tensor] * ranks
    return tensor.split(list(sizes) if sizes else tensor.shape[0] // ranks)
