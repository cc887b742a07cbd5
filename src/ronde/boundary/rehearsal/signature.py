"""What else but its arguments decides how a model behaves: modes, hooks, layers, numbers and texts.

Asked at every call of a model, so the places to look at are found once, and asking costs microseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules import module as modules

from ronde.boundary.blind_hooks import blind_hooks, is_blind
from ronde.boundary.contents import SCALARS, each_once
from ronde.boundary.reach import BOOKKEEPING, Place, Reach
from ronde.modules.torchscript import is_training
from ronde.patching.caller import is_users

__all__ = ["Behaviour", "Number"]

_HOOKS = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")

_HOOK = "forward_pre_hook"


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """Where a number comes from: an attribute (or variable) of `namespace`, or a leaf of the arguments."""

    name: str
    namespace: Mapping[str, Any] | None = None
    leaf: int | None = None


class Behaviour:
    """The places that decide how one module behaves.

    Attributes:
        places: of what may be or hold numbers, texts and flags: attributes, variables that code names.
        names: of attributes and functions that its code uses.
        asks_lengths: whether it may go by how much there is of something, as far as its code tells.
        namespaces: the global variables of its code.
        hands_on_len: whether it does so by another name than `len`.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        # Not the module itself: whoever knows its behaviour is to forget it when the module goes.
        parts = list(module.modules())
        self._own = [vars(part) for part in parts]
        # TorchScript has no such entry: its modules are asked.
        self._elsewhere = [part for part in parts if "training" not in vars(part)]
        self._children = [(part._modules, list(part._modules.values())) for part in parts if part._modules]
        self._sizes = [len(own) for own in self._own]
        self._hooks = [getattr(part, kind) for part in parts for kind in _HOOKS]
        self._before = [(part._forward_pre_hooks, part._forward_pre_hooks_with_kwargs) for part in parts]
        self._keys = [(hooks, tuple(hooks)) for hooks, _ in self._before]
        self._blind: dict[int, bool] = {}
        self._parameters = [part._parameters for part in parts if part._parameters]
        self.places: list[Place] = []
        self._functions: list[tuple[Mapping[str, Any], str, Any]] = []
        self._find_places(parts)
        self._read = [(place.namespace, place.name) for place in self.places]

    def _find_places(self, parts: Sequence[torch.nn.Module]) -> None:
        reach = Reach()
        for part in parts:
            reach.visit(part)
            for hook in blind_hooks(part):
                reach.visit(hook, _HOOK)
                self.places.append(Place(_HOOK, {_HOOK: hook}))
        self.names = frozenset(reach.names)
        functions = [
            value for _, value in reach.values if isinstance(value, FunctionType) and is_users(value)
        ]
        self.namespaces = [*{id(each.__globals__): each.__globals__ for each in functions}.values()]
        self.hands_on_len = any(value is len for _, value in reach.values)
        self.asks_lengths = self.hands_on_len or "len" in self.names
        for part in parts:
            users = is_users(type(part))
            for name, value in vars(part).items():
                if name in BOOKKEEPING:
                    continue
                if callable(value) and not issubclass(type(value), torch.nn.Module):
                    self._functions.append((vars(part), name, value))
                # Into what holds more than one value and is not named the script may write what it likes, its
                # losses say.
                named = name in reach.names or issubclass(type(value), SCALARS)
                # A library's own code is not read; scripts set its flags, and change its configuration.
                set_by_scripts = type(value) in (bool, str) or name == "config"
                flag = set_by_scripts and not type(part).__module__.startswith("torch.")
                if (users and named) or issubclass(type(value), float) or (flag and not users):
                    self.places.append(Place(name, vars(part)))
        self.places += [place for place in reach.places if place.name != "__class__"]

    @property
    def watched(self) -> set[tuple[int, str]]:
        """The ids of namespaces and the names there of the module's own attributes among the places."""
        return {(id(place.namespace), place.name) for place in self.places}

    def outdated(self) -> bool:
        """Whether layers or attributes have come, gone or been replaced: places are to be found anew."""
        if [len(own) for own in self._own] != self._sizes:
            return True
        if any((hooks or keys) and tuple(hooks) != keys for hooks, keys in self._keys):
            return True
        for members, children in self._children:
            if list(members.values()) != children:
                return True
        return any(members.get(name) is not value for members, name, value in self._functions)

    def hooked(self) -> bool:
        """Whether the user has hooks on the module, a part or a parameter of it, or on all modules."""
        for hooks in self._hooks:
            if hooks and not all(map(_is_torchs, hooks.values())):
                return True
        for hooks, given_names in self._before:
            for key, hook in hooks.items():
                if not (_is_torchs(hook) or self._is_blind(key, hook, kwargs=key in given_names)):
                    return True
        for parameters in self._parameters:
            for parameter in parameters.values():
                if parameter is not None and parameter._backward_hooks:
                    return True
        return _has_global_hooks()

    def _is_blind(self, key: int, hook: Any, *, kwargs: bool) -> bool:
        """Whether it is but a part of the module; the key is that of no other hook, before or after it."""
        if key not in self._blind:
            self._blind[key] = is_blind(hook, kwargs=kwargs)
        return self._blind[key]

    def modes(self) -> Any:
        """What is compared as it is: training or not, and hooks."""
        training = [own.get("training") for own in self._own]
        hooked = self.hooked()
        # Modules that are made alike share what was found of them, but not where each has hooks of its own.
        return (
            tuple(training),
            tuple([is_training(part) for part in self._elsewhere]),
            hooked,
            (*self._blind,),
        )

    def numbers(self) -> list[Any]:
        """What is at each place now, as something to compare."""
        return each_once([namespace.get(name) for namespace, name in self._read], lengths=self.asks_lengths)

    def source(self, place: int) -> Number:
        """Where the number at this place of `numbers` comes from; those behind are leaves of arguments."""
        if place < len(self.places):
            return Number(self.places[place].name, namespace=self.places[place].namespace)
        return Number("an argument", leaf=place - len(self.places))


def _is_torchs(hook: Any) -> bool:
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return owner.split(".")[0] == "torch"


def _global_hooks() -> Iterator[Any]:
    yield from modules._global_forward_hooks.values()
    yield from modules._global_forward_pre_hooks.values()
    yield from modules._global_backward_hooks.values()
    yield from modules._global_backward_pre_hooks.values()


def _has_global_hooks() -> bool:
    return any(not _is_torchs(hook) for hook in _global_hooks())
