"""Parameter groups of a model: parameters used together, so gathered together.

A group ("unit") is one of the repeated blocks, as users of FSDP wrap them by hand, or a layer between blocks;
small neighbours form one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ronde.policies.repeated_blocks import repeated_blocks
from ronde.shards.partition import by_kind
from ronde.shards.unit import LEAST_BYTES

__all__ = ["find_units"]

# In small models units smaller than this share of the whole are joined.
_LEAST_SHARE = 16


def find_units(model: nn.Module) -> list[list[torch.Tensor]]:
    """Cut a model's parameters into units, in the order of its modules.

    Returns:
        Lists of parameters of one dtype and device each; every parameter once, in its first module.
    """
    seen: set[int] = set()
    units: list[list[torch.Tensor]] = []
    small: list[torch.Tensor] = []
    least_bytes = min(LEAST_BYTES, _bytes(list(model.parameters())) // _LEAST_SHARE)
    for module, whole in _atoms(model, set(repeated_blocks(model))):
        new = [each for each in _parameters(module, whole) if id(each) not in seen]
        seen.update(map(id, new))
        small += new
        if _bytes(small) >= least_bytes:
            units.append(small)
            small = []
    if small:
        units.append(small)
    return [members for unit in units for members in by_kind(unit)]


def _atoms(module: nn.Module, blocks: set[nn.Module]) -> Iterator[tuple[nn.Module, bool]]:
    """Yield undivided modules, and modules with own parameters next to undivided ones.

    The flag is True for a module that is not divided, with all inside of it.
    """
    if module in blocks or not module._modules:
        yield module, True
        return
    yield module, False
    for child in module.children():
        yield from _atoms(child, blocks)


def _parameters(module: nn.Module, whole: bool) -> Iterator[torch.Tensor]:
    return module.parameters(recurse=whole)


def _bytes(members: Sequence[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in members)
