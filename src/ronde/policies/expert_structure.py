"""Mixtures of experts in a model: which modules route tokens to experts, and which rank has which expert.

Two forms are known: a list of equal modules, of which its own forward or its parent's, beside a router, calls
some on the tokens that it has chosen for them; and one module whose parameters are those of all experts, one
behind another, which is given tokens, choices and weights, as Hugging Face writes Mixtral, Qwen and others.
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
    """A module that is given tokens, and gives each to some of its experts.

    Attributes:
        name: in its model.
        experts: modules, one for each; none where one module has the parameters of all.
        count: of experts.
        parameters: those of experts, each with its expert; -1 where its first dimension counts experts.
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
        """The modules of the experts."""
        return [part for expert in self.experts or (self.module,) for part in expert.modules()]

    @property
    def units(self) -> list[list[torch.Tensor]]:
        """The parameters of each expert, or of all together."""
        found: dict[int, list[torch.Tensor]] = {}
        for tensor, expert in self.parameters:
            found.setdefault(expert, []).append(tensor)
        return list(found.values())


def mixtures(model: nn.Module, ranks: int) -> list[Mixture]:
    """Those of which `ranks` can have equally many experts each."""
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
    """Ids of the modules in mixtures, and of these."""
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
    """Lists of modules by their names, of which the module's forward calls some."""
    if _calls_its_own(module):
        yield name.rpartition(".")[2], module
    for key, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) and not _calls_its_own(child):
            yield key, child


def _calls_its_own(module: nn.Module) -> bool:
    """Whether a list of modules is called as a module too."""
    return (
        isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is not nn.Module.forward
    )


def _has_router(module: nn.Module, key: str, count: int) -> bool:
    """Whether the members of a list are chosen from, and not called one after another."""
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
