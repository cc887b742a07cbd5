"""The fast path of torch's transformers in evaluation, with zeros at padded places.

Its results differ from the slow path's. Torch takes it if no argument or parameter has a class of its own,
and if the padding of every row of the batch is at its end. Here sharded tensors have such a class, so such an
encoder is given whole ones; and a rank has rows of its own.
"""

from __future__ import annotations

import torch

from ronde.patching.patches import Patches
from ronde.patching.torch_internals import nested_tensor_from_mask
from ronde.tensor.context import Context, Region

__all__ = ["install", "may_take_fast_path"]


def may_take_fast_path(module: torch.nn.Module) -> bool:
    """Return whether a module checks the classes of its parameters and arguments."""
    return isinstance(module, torch.nn.TransformerEncoder) and not module.training


def install(patches: Patches, context: Context, pieces: int) -> None:
    """Let ranks agree on whether the padding of all rows is at their ends.

    Args:
        pieces: largest number of pieces into which each rank's rows are cut.
    """
    plain = nested_tensor_from_mask

    def left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
        if context.standing.batchless or pieces > 1:
            return plain(t, mask)
        if context.together is not None:
            return context.together(lambda: context.comm.votes([not plain(t, mask)]) == [0])
        if context.region is not Region.SHARDED:
            return plain(t, mask)
        return context.comm.votes([not plain(t, mask)]) == [0]

    patches.set(torch, "_nested_tensor_from_mask_left_aligned", left_aligned)
