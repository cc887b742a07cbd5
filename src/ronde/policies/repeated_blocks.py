"""Detection of repeated blocks: layers of a transformer, blocks of a residual network."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from torch import nn

__all__ = ["parts_of", "repeated_blocks"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost composite modules of a class that occurs several times.

    Plain containers are not a class in this sense, except `nn.Sequential` members of one list that hold no
    repeated block themselves.
    """
    parts = [part for part in model.modules() if part is not model and _is_composite(part)]
    kinds = collections.Counter(type(part) for part in parts)
    repeated = {kind for kind, count in kinds.items() if count > 1 and kind not in _CONTAINERS}
    return list(_outermost(model, repeated))


def parts_of(block: nn.Module) -> list[nn.Module]:
    """Return the composite modules inside a block, with the members of its lists."""
    found: list[nn.Module] = []
    for child in block.children():
        found += parts_of(child) if type(child) in (nn.ModuleList, nn.ModuleDict) else [child]
    return [child for child in found if _is_composite(child)]


def _is_composite(part: nn.Module) -> bool:
    return bool(part._modules) and next(part.parameters(), None) is not None


def _outermost(module: nn.Module, repeated: set[type]) -> Iterator[nn.Module]:
    alike = _lists_in(module)
    for child in dict.fromkeys(child for child in module._modules.values() if child is not None):
        if type(child) in repeated or child in alike:
            yield child
        else:
            yield from _outermost(child, repeated)


def _lists_in(module: nn.Module) -> list[nn.Module]:
    """Return members of a container that are plain sequences without repeated blocks. Empty if there are
    fewer than two.
    """
    if type(module) not in _CONTAINERS:
        return []
    found: list[nn.Module] = [child for child in module._modules.values() if type(child) is nn.Sequential]
    found = [child for child in found if _is_composite(child) and not repeated_blocks(child)]
    return found if len(found) > 1 else []
