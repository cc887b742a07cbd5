"""What a model keeps between calls, on itself and around it: pictures to compare, and the way back.

A picture is a copy of what a value holds, of tensors, numbers, texts and containers only. The surroundings
of a model are the variables that its code names beside its arguments (global ones, those of enclosing
functions) and what is behind them.
"""

from __future__ import annotations

import collections
import random
import types
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy
import torch

from ronde.boundary.blind_hooks import blind_hooks
from ronde.boundary.cached_functions import CACHED
from ronde.boundary.changed_by_others import changed_by_others
from ronde.boundary.irrevocable import irrevocable_among
from ronde.boundary.members import (
    CELLS,
    LISTS,
    attributes,
    cells,
    copied,
    dictionary,
    entries,
    holds_numbers,
    pairs,
    slots,
)
from ronde.boundary.named_hosts import hosts_in_model
from ronde.boundary.reach import BOOKKEEPING, GENERATORS, SIMPLE, Place, Reach, is_data
from ronde.boundary.untouched import Untouched
from ronde.boundary.ways_back import LARGEST, books, restored, ways_back
from ronde.boundary.weak_references import WEAK, behind
from ronde.patching.caller import is_users
from ronde.patching.other_threads import others_run
from ronde.rng.random_state import HOSTS, host_states, put_back
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.global_tensor import GlobalTensor

__all__ = [
    "Behind",
    "Surroundings",
    "generator_state",
    "kept_by",
    "kept_tensors",
    "module_state",
    "picture",
]

_DEPTH = 6
_SMALL = 1 << 16
_FEW = 64


def generator_state(value: Any) -> Any:
    """The state of a random generator, as something that can be compared."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, numpy.random.Generator):
        return picture(value.bit_generator.state)
    return picture(value.get_state(legacy=False))


class _Album:
    """Which objects of one state pictures have been taken of: a configuration that all layers share, say."""

    def __init__(self) -> None:
        self._page, self._count = "", 0
        # By id, as a state is taken in one go: how deep it was looked into, and where.
        self._taken: dict[int, tuple[int, str, int]] = {}

    def turn(self, page: str) -> None:
        """Go on with pictures of what has this name."""
        self._page, self._count = page, 0

    def earlier(self, value: Any, depth: int) -> Any:
        """Where it was pictured before, at least as deep; None, and it is from now on, where it was not."""
        taken = self._taken.get(id(value))
        if taken is not None and taken[0] >= depth:
            return "as", *taken[1:]
        self._count += 1
        self._taken[id(value)] = depth, self._page, self._count
        return None


def picture(
    value: Any, depth: int = _DEPTH, known: set[int] | None = None, album: _Album | None = None
) -> Any:
    """A copy of what `value` holds; what cannot be copied is named by its type.

    Args:
        depth: so many containers in one another are looked into, and what is new in the innermost.
        known: ids of what pictures are taken of anyway, and of what is come by here; None: nothing is new.
        album: knows what is pictured elsewhere; None: all of it is pictured here.
    """
    if type(value) in SIMPLE:
        return value
    if album is not None and (earlier := album.earlier(value, depth)) is not None:
        return earlier
    if issubclass(type(value), WEAK):
        return "held", id(behind(value))
    if type(value) is Untouched:
        return "held", id(value)
    if isinstance(value, (GlobalTensor, DeferredScalar, torch.nn.Parameter)):
        return "held", id(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if depth > 2 or value.numel() <= _SMALL else ("held", id(value))
    if isinstance(value, numpy.ndarray):
        return value.copy() if value.nbytes <= LARGEST and value.dtype != object else ("array", value.shape)
    if isinstance(value, SIMPLE):
        return value
    if isinstance(value, CELLS):
        seen = holds_numbers(value) and memoryview(value).nbytes <= LARGEST
        return (type(value).__name__, cells(value)) if seen else type(value).__name__
    if isinstance(value, GENERATORS):
        return "generator", generator_state(value)
    if isinstance(value, torch.optim.Optimizer):
        # Not its state, of which a rank may hold a part, or nothing: a step is seen by what it writes to.
        return "optimizer", [picture(settings, 2) for settings in _groups(value)]
    if depth <= 0:
        if known is None or depth <= -_DEPTH or not _is_new(value, known):
            return type(value).__name__
        known.add(id(value))
    if isinstance(value, dict):
        return {_key(key): picture(item, depth - 1, known, album) for key, item in pairs(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(str(_key(item)) for item in entries(value))
    if isinstance(value, LISTS):
        return [picture(item, depth - 1, known, album) for item in entries(value)]
    inside = _inside(value)
    if inside is None or depth == 1:
        return type(value).__name__
    return {
        "type": type(value).__name__,
        **{_key(name): picture(item, depth - 2, known, album) for name, item in inside.items()},
    }


def _is_new(value: Any, known: Container[int]) -> bool:
    """Whether it is a small container, or what a user's class keeps, that nobody has come by before."""
    if id(value) in known:
        return False
    if issubclass(type(value), (dict, *LISTS)):
        return len(pairs(value) if isinstance(value, dict) else entries(value)) <= _FEW
    return is_data(type(value))


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of an optimizer, without the parameters that they are for."""
    groups = attributes(optimizer).get("param_groups", ())
    return [{name: item for name, item in group.items() if name != "params"} for group in groups]


def _key(key: Any) -> Any:
    if isinstance(key, torch.nn.Parameter):  # the class of one in parts changes
        return "held", id(key)
    return key if isinstance(key, (*SIMPLE, tuple)) else repr(type(key))


def _inside(value: Any) -> Mapping[str, Any] | None:
    """The attributes of an object that is data."""
    if isinstance(value, (type, types.ModuleType, types.FunctionType, types.MethodType)):
        return None
    if isinstance(value, torch.nn.Module):
        return {name: item for name, item in vars(value).items() if name not in _OWN}
    return attributes(value) or None


# Bookkeeping of torch's; parameters and modules are looked at by themselves.
_OWN = {"_non_persistent_buffers_set", "_parameters"} | {
    key for key in vars(torch.nn.Module()) if key.endswith("_hooks") or "hooks_" in key
}


def module_state(module: torch.nn.Module) -> dict[str, Any]:
    """Pictures of everything kept on the module but parameters' values and batch statistics."""
    found: dict[str, Any] = {}
    album = _Album()
    left_out = _OWN | {"_modules", "_buffers"}
    for path, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            continue
        own = {key: value for key, value in vars(part).items() if key not in left_out}
        for name, value in (*part._buffers.items(), *own.items()):
            page = f"{path}.{name}" if path else name
            album.turn(page)
            found[page] = picture(value, album=album)
    return found


def kept_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a value leads to, but for what optimizers keep."""
    return (held for held in kept_by(value) if isinstance(held, torch.Tensor))


def kept_by(value: Any, depth: int = _DEPTH, seen: set[int] | None = None) -> Iterator[Any]:
    """Every tensor, every optimizer and every weak reference that a value leads to."""
    seen = set() if seen is None else seen
    if issubclass(type(value), WEAK):
        yield value
        return
    if type(value) is Untouched:
        return
    if isinstance(value, (torch.Tensor, torch.optim.Optimizer)):
        yield value
        return
    if depth == 0 or isinstance(value, SIMPLE) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        items = [*value._parameters.values(), *value._buffers.values(), *value._modules.values()]
        items += [item for name, item in vars(value).items() if name not in _OWN | {"_modules", "_buffers"}]
        depth += 1
    elif isinstance(value, dict):
        items = [item for _, item in pairs(value)]
    elif isinstance(value, LISTS):
        items = entries(value)
    else:
        items = list((_inside(value) or {}).values())
    for item in items:
        yield from kept_by(item, depth - 1, seen)


def _reached(module: torch.nn.Module) -> tuple[Reach, set[int]]:
    """What the code of a module and those inside it reaches, and the ids of all of these."""
    reach, parts = Reach(), list(module.modules())
    for part in parts:
        reach.visit(part)
        for hook in blind_hooks(part):
            reach.visit(hook, "forward_pre_hook")
    return reach, {id(part) for part in parts}


class Surroundings:
    """The variables that a model's code names beside its arguments, and the objects behind them."""

    def __init__(self, module: torch.nn.Module) -> None:
        reach, mine = _reached(module)
        self._places = [place for place in reach.places if id(place.read()) not in mine]
        # What is kept on the module itself has been copied with it.
        own = _owned(module)
        self._values = [
            (name, value)
            for name, value in reach.values
            if _is_open(value) and id(value) not in own and id(value) not in mine
        ]
        self._known = {id(value) for _, value in self._values}
        self._books = [book for held in kept_by(module) for book in books(held)]
        self._others = _ChangedByOthers() if self._places or self._values else None
        self.generators = reach.generators()
        self.hosts = hosts_in_model(module, reach)
        self.irrevocable = irrevocable_among([*reach.values, *reach.modules.items()])

    def state(self) -> dict[str, Any]:
        """Pictures of all of it, by what a reader would look for."""
        known = set(self._known)
        return {
            **{name: _shallow(place.read()) for name, place in self._variables()},
            **{name: picture(value, 2, known) for name, value in self._contents()},
        }

    def _variables(self) -> Iterator[tuple[str, Place]]:
        return ((f"the variable {place.name}", place) for place in self._places)

    def _contents(self) -> Iterator[tuple[str, Any]]:
        for number, (name, value) in enumerate(self._values):
            yield f"what the variable {name} holds ({number})", value

    def knows(self, value: Any) -> bool:
        """Whether what this object holds is told, and put back."""
        return id(value) in self._known

    def shared(self) -> set[str]:
        """Of what `state` tells, what another thread may change: it is never put back."""
        places = {name for name, place in self._variables() if not self._is_own(place)}
        return places | {name for name, value in self._contents() if not self._is_own(value)}

    def _is_own(self, value: Any) -> bool:
        return self._others is None or value not in self._others

    def restored(self) -> AbstractContextManager[None]:
        """Whatever happens inside, variables and what they hold are afterwards as they were."""
        values = [value for _, value in self._values if self._is_own(value)]
        return restored(filter(self._is_own, self._places), [*values, *self._books])


class _ChangedByOthers:
    """What other threads may change, as they stand now: variables, and objects that these lead to."""

    def __init__(self) -> None:
        reach = changed_by_others()
        self._held = reach  # so that ids stay what they are
        self._values = {id(value) for _, value in reach.values} if reach else set[int]()
        self._places = {place.key for place in reach.places} if reach else set[tuple[int, str]]()

    def __contains__(self, value: Any) -> bool:
        return value.key in self._places if isinstance(value, Place) else id(value) in self._values


class Behind:
    """What a module's code keeps and reaches beside parameters and buffers, and may find changed later.

    The module itself is not held: this may be kept for as long as it lives.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        reach, mine = _reached(module)
        self._parts = [weakref.ref(part) for part in module.modules()]
        self._places = [place for place in reach.places if id(place.read()) not in mine]
        self._values = [value for _, value in reach.values if id(value) not in mine and _is_open(value)]
        self._irrevocable = irrevocable_among([*reach.values, *reach.modules.items()])
        self._hosts = hosts_in_model(module, reach)

    def irrevocable(self) -> str:
        """Something that the code uses and that has no way back, in words; "" where there is nothing."""
        return self._irrevocable or irrevocable_among(self._named())

    def tensors(self) -> list[torch.Tensor]:
        """Plain ones that are attributes, or variables."""
        return [each for each in self._held() if type(each) is torch.Tensor and not each.is_inference()]

    def way_back(self) -> Callable[[], None]:
        """What puts variables, the contents of objects and random generators back as they are now."""
        values = {id(value): value for value in (*self._values, *self._held()) if _is_open(value)}
        places = self._places
        if (values or places) and others_run():
            others = _ChangedByOthers()
            values = {key: value for key, value in values.items() if value not in others}
            places = [place for place in places if place not in others]
        back = ways_back(places, values.values())
        hosts = self._hosts if others_run() else HOSTS
        if not hosts:
            return back
        states = host_states()

        def all_back() -> None:
            back()
            put_back(states, hosts)

        return all_back

    def _held(self) -> Iterator[Any]:
        return (value for _, value in self._named())

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Attributes as they are now, which may be others than at first, and variables."""
        for ref in self._parts:
            part = ref()
            for name, value in vars(part).items() if part is not None else ():
                if name not in BOOKKEEPING:
                    yield name, value
        for place in self._places:
            yield place.name, place.read()


def _owned(module: torch.nn.Module) -> set[int]:
    """Ids of objects that hang on the module's own attributes."""
    reach: set[int] = set()

    def walk(value: Any, depth: int) -> None:
        if depth == 0 or id(value) in reach or isinstance(value, (*SIMPLE, types.FunctionType, type)):
            return
        reach.add(id(value))
        inside = copied(value) if isinstance(value, dict) else _inside(value) or {}
        for item in entries(value) if isinstance(value, (list, tuple, set)) else inside.values():
            walk(item, depth - 1)

    for part in module.modules():
        for name, value in vars(part).items():
            if name not in _OWN | {"_modules", "_buffers"}:
                walk(value, _DEPTH)
    return reach


def _is_open(value: Any) -> bool:
    """Whether an object's contents may be changed by whoever has it."""
    kind = type(value)
    if issubclass(kind, (list, dict, set, collections.deque, numpy.ndarray, *CELLS, *GENERATORS)):
        return True
    if issubclass(kind, _STEPPED):
        return True
    # What torch's own keep are tensors, which show when they are written to.
    if issubclass(kind, torch.nn.Module) and not kind.__module__.startswith("torch."):
        return True
    if issubclass(kind, CACHED):
        return is_users(getattr(value, "__wrapped__", None))
    return is_data(kind) and (dictionary(value) is not None or bool(slots(kind)))


# What steps once for each batch, and keeps numbers of its own.
_STEPPED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


def _shallow(value: Any) -> Any:
    return value if isinstance(value, SIMPLE) else ("held", id(value))
