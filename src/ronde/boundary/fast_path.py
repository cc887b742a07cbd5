"""The fast path of torch's transformers in evaluation, whose results differ: padded places are zeros there.

Torch takes it if no argument has a class of its own, and if the padding of every row of the batch is at its
end. Here tensors in parts have such a class, and a rank has rows of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.overrides

from ronde.boundary.context import Context, Region
from ronde.boundary.joint import row_by_row
from ronde.boundary.patches import Patches

__all__ = ["install"]

_ASKING = ("torch.nn.modules.activation", "torch.nn.modules.transformer")


def install(patches: Patches, context: Context) -> None:
    """Have torch's transformers take the path that they take on one device."""
    plain_asked = torch.overrides.has_torch_function
    plain_aligned = torch._nested_tensor_from_mask_left_aligned

    def has_torch_function(relevant_args: Iterable[Any]) -> bool:
        if torch.compiler.is_compiling() or sys._getframe(1).f_globals.get("__name__") not in _ASKING:
            return plain_asked(relevant_args)
        return plain_asked([each for each in relevant_args if not _is_ours(each)])

    def left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
        """Whether the padding of all rows is at their ends."""
        if context.batchless or context.pieces > 1:  # not all ranks may come by, or not as often
            return plain_aligned(t, mask)
        if context.region is Region.REHEARSAL:
            row_by_row(mask, keeps=False)
            return False
        aligned = plain_aligned(t, mask)
        if context.region is Region.SHARDED:
            return context.comm.votes([not aligned]) == [0]
        return aligned

    patches.set(torch.overrides, "has_torch_function", has_torch_function)
    patches.set(torch, "_nested_tensor_from_mask_left_aligned", left_aligned)


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("ronde.")
