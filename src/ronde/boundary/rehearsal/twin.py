"""Copies of models to try, which share parameters with them and nothing that a trial would change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DisableTorchFunction

from ronde.boundary.blind_hooks import blind_hooks
from ronde.boundary.guards import Refusal, irrevocable
from ronde.boundary.kept import kept_by
from ronde.boundary.reach import BOOKKEEPING, SIMPLE, is_data
from ronde.boundary.untouched import Untouched
from ronde.boundary.ways_back import restored
from ronde.boundary.weak_references import WEAK, astray, behind, follow_copies, put
from ronde.patching.caller import is_users
from ronde.rng.random_state import HOSTS, preserved_random_state
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.global_tensor import GlobalTensor

__all__ = ["SCRIPTED", "is_shared", "twin_of"]

SCRIPTED = "it is TorchScript, whose copies do not share parameters"


def twin_of(
    module: torch.nn.Module,
    made: Callable[[torch.Tensor], torch.Tensor] | None = None,
    *,
    kept_out: list[Untouched] | None = None,
) -> torch.nn.Module:
    """A copy with buffers of its own that shares the parameters, and optimizers: a step is not let through.

    Args:
        made: what makes a tensor of its own from each of the module's; None copies it.
        kept_out: gets what stands in the copy for what must not be used.

    Raises:
        Refusal: when a class makes copies in a way of its own (Keras saves and loads), which share nothing.
    """
    kept_out = [] if kept_out is None else kept_out
    strange = next((type(part) for part in module.modules() if _is_rebuilt(type(part))), None)
    if strange is not None:
        raise Refusal(
            f"{strange.__name__} says itself how it is copied (__reduce__), and a trial needs a copy"
        )
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    if scripted and not all(map(_is_there, module.parameters())):  # copied in C++, from memory as it is
        raise Refusal(SCRIPTED)
    known: dict[int, Any] = {}
    for held in kept_by(module):
        if issubclass(type(held), WEAK) or is_shared(held):
            known[id(held)] = held
        elif made is not None:
            known[id(held)] = made(held)
    # What these keep is around the module, and is put back there.
    known.update((id(hook), hook) for part in module.modules() for hook in blind_hooks(part))
    known.update((id(parameter), parameter) for parameter in module.parameters())
    # What a class does to be pickled (`__getstate__`) may be done to the module itself, and a copy that is
    # built anew draws its first weights.
    hosts = HOSTS if any(_copies_itself(type(part)) for part in module.modules()) else frozenset[str]()
    with restored((), [vars(part) for part in module.modules()]), preserved_random_state(hosts):
        twin = copy.deepcopy(module, known)
        _put_in_what_is_left_out(module, known, kept_out)
    if lost := astray(known):
        raise irrevocable(lost)
    for holder, key, value in follow_copies(known):
        if _is_unknown(found := behind(value)):
            put(holder, key, _kept_out_of(kept_out, found, key))
    return twin


def _kept_out_of(kept_out: list[Untouched], found: Any, name: Any) -> Untouched:
    kept_out.append(Untouched(f"the {type(found).__name__} {name}"))
    return kept_out[-1]


def _put_in_what_is_left_out(
    module: torch.nn.Module, copies: dict[int, Any], kept_out: list[Untouched]
) -> None:
    """A class may leave something out of its copies (`__getstate__`), and do something else without it."""
    for part in module.modules():
        copied = copies.get(id(part))
        if copied is None or copied is part or not _says_its_state(type(part)):
            continue
        own = vars(copied)
        for name, value in vars(part).items():
            if name in BOOKKEEPING or value is None or own.get(name) is not None:
                continue
            try:
                own[name] = copy.deepcopy(value, copies)
            except Exception:  # which is why it is left out
                own[name] = _kept_out_of(kept_out, value, name)


def _says_its_state(kind: type) -> bool:
    owners = (base for base in kind.__mro__ if "__getstate__" in vars(base))
    return any(base.__module__.partition(".")[0] not in ("builtins", "torch") for base in owners)


def _is_unknown(value: Any) -> bool:
    """Whether it is an object of which it is not known what it holds, and what it does when it is used."""
    known = (torch.Tensor, torch.nn.Module, torch.utils.data.Dataset, torch.optim.Optimizer, type, *SIMPLE)
    return not (issubclass(type(value), known) or callable(value) or is_data(type(value)))


def is_shared(held: Any) -> bool:
    """What a copy of a module has in common with it: parameters and who updates them, and what is part of a
    graph or a batch."""
    if isinstance(held, (torch.nn.Parameter, torch.optim.Optimizer, GlobalTensor, DeferredScalar)):
        return True
    return held.grad_fn is not None


def _is_there(parameter: torch.Tensor) -> bool:
    """Whether it has memory for its elements on this rank, which is so on all or on none."""
    with DisableTorchFunction():
        return parameter.untyped_storage().nbytes() >= parameter.numel() * parameter.element_size()


def _is_rebuilt(kind: type) -> bool:
    """Whether copies of the class are not made of what an object has; torch's own classes see to that."""
    whose = next(base for base in kind.__mro__ if {"__reduce__", "__reduce_ex__"} & vars(base).keys())
    known = whose.__module__.partition(".")[0] in ("builtins", "torch")
    return not (known or hasattr(kind, "__deepcopy__"))


def _copies_itself(kind: type) -> bool:
    """Whether copies are made by code of the user's, which may do anything."""
    return any(
        {"__deepcopy__", "__setstate__"} & vars(base).keys() for base in kind.__mro__ if is_users(base)
    )
