"""Detection of mixtures of experts in a model.

Two forms are known. One is a list of equal modules: its own forward, or its parent's beside a router, calls
some of them on the tokens chosen for each. The other is one module with the parameters of all experts,
stacked along the first dimension, with tokens, choices and weights as arguments, as Hugging Face writes
Mixtral, Qwen and others.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator

import torch
from torch import nn

__all__ = ["Mixture", "mixtures", "modules_of"]

_FUSED_ARGUMENTS = 3
_ROUTERS = ("gate", "router", "gating", "route", "wg")


@dataclasses.dataclass(eq=False, slots=True)
class Mixture:
    """Module that routes each token to some of its experts.

    Attributes:
        name: qualified name in its model.
        experts: modules of the experts; empty where one module has the parameters of all.
        count: number of experts.
        parameters: parameters of experts, each with the index of its expert; -1 where the first dimension
            counts experts.
    """

    name: str
    module: nn.Module
    experts: tuple[nn.Module, ...]
    count: int
    parameters: tuple[tuple[torch.Tensor, int], ...]

    @property
    def is_fused(self) -> bool:
        return not self.experts

    @property
    def parts(self) -> list[nn.Module]:
        """Modules of the experts."""
        return [part for expert in self.experts or (self.module,) for part in expert.modules()]

    @property
    def units(self) -> list[list[torch.Tensor]]:
        """Parameters of each expert, or of all together in a fused module."""
        found: dict[int, list[torch.Tensor]] = {}
        for tensor, expert in self.parameters:
            found.setdefault(expert, []).append(tensor)
        return list(found.values())


def mixtures(model: nn.Module, ranks: int) -> list[Mixture]:
    """Return the mixtures with a number of experts divisible by `ranks`."""
    found: list[Mixture] = []
    inside: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        mixture = _listed(name, module) or _fused(name, module)
        if mixture is not None and mixture.count % ranks == 0:
            found.append(mixture)
            inside |= {id(part) for part in module.modules()}
    return found


def modules_of(found: Iterable[Mixture]) -> set[int]:
    """Return ids of mixtures and of the modules inside of them."""
    return {id(part) for each in found for part in each.module.modules()}


def _listed(name: str, module: nn.Module) -> Mixture | None:
    for key, child in _lists(name, module):
        experts = tuple(child.children())
        if len(experts) < 2 or not _has_router(module, key, len(experts)):
            continue
        if len({_kind(each) for each in experts}) > 1 or any(
            True for each in experts for _ in each.buffers()
        ):
            continue
        pairs = tuple((each, place) for place, expert in enumerate(experts) for each in expert.parameters())
        if pairs and len({id(each) for each, _ in pairs}) == len(pairs):
            return Mixture(name, module, experts, len(experts), pairs)
    return None


def _lists(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield lists of modules that a forward may choose from, with their names."""
    if _calls_its_own(module):
        yield name.rpartition(".")[2], module
    for key, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) and not _calls_its_own(child):
            yield key, child


def _calls_its_own(module: nn.Module) -> bool:
    """Return whether a list of modules has a forward of its own."""
    return (
        isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is not nn.Module.forward
    )


def _has_router(module: nn.Module, key: str, count: int) -> bool:
    """Return whether the members of a list are experts, not consecutive layers.

    A list is taken for one of experts by its name, or by a router beside it with as many outputs.
    """
    if "expert" in key:
        return True
    return any(
        name in _ROUTERS and any(each.shape[0] == count for each in child.parameters() if each.dim())
        for name, child in module.named_children()
    )


def _kind(expert: nn.Module) -> tuple[object, ...]:
    return type(expert), *((name, each.shape, each.dtype) for name, each in expert.named_parameters())


def _fused(name: str, module: nn.Module) -> Mixture | None:
    count = getattr(module, "num_experts", None)
    own = [each for each in module._parameters.values() if each is not None]
    if not isinstance(count, int) or count < 2 or len(own) != len(list(module.parameters())):
        return None
    if not any(each.dim() >= 3 for each in own) or any(
        not each.dim() or each.shape[0] != count for each in own
    ):
        return None
    if len(inspect.signature(module.forward).parameters) != _FUSED_ARGUMENTS:
        return None
    return Mixture(name, module, (), count, tuple((each, -1) for each in own))
