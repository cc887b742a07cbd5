"""Search of a script's tensors, optimizers and generators, each with a name.

The search begins with the variables of the functions that the script is in, and of its modules, and follows
attributes, items and closures. It takes the same way at the same place of the same script, so the names found
at a checkpoint are found again when the replay has reached that place.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.optim import Optimizer

from ronde.patching.caller import file_of, is_users_module
from ronde.trace.script_line import RONDE, is_library

__all__ = ["CapturedState", "held_by_script"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SKIPPED = (types.ModuleType, type, types.CodeType, types.FrameType, types.BuiltinFunctionType, numpy.ndarray)
# Containers of samples and workers, without trained state.
_DATA = (torch.utils.data.Dataset, torch.utils.data.Sampler, torch.utils.data.DataLoader)
_MOST = 5_000_000


@dataclasses.dataclass(slots=True)
class CapturedState:
    """Objects found in a script, by name.

    Attributes:
        tensors: all but those of optimizers' states; gradients end in `.grad`.
        optimizers: optimizers, to be saved by their `state_dict`.
        modules: each `nn.Module`.
        generators: torch's own, beside the default ones.
    """

    tensors: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    optimizers: dict[str, Optimizer] = dataclasses.field(default_factory=dict)
    modules: dict[str, torch.nn.Module] = dataclasses.field(default_factory=dict)
    generators: dict[str, torch.Generator] = dataclasses.field(default_factory=dict)


def held_by_script(frame: types.FrameType | None) -> CapturedState:
    """Find the objects held by the script that called the function of this frame."""
    found = CapturedState()
    seen: dict[int, Any] = {}
    queue = collections.deque(_roots(frame))
    while queue:
        name, value = queue.popleft()
        if isinstance(value, (*_PLAIN, *_SKIPPED)) or id(value) in seen:
            continue
        seen[id(value)] = value  # kept alive, because ids of freed objects are reused
        if len(seen) > _MOST:
            break
        _note(found, name, value)
        if isinstance(value, torch.nn.Module):  # its own names for what is in it, before any others
            queue.extendleft(reversed(list(_in_module(name, value))))
        else:
            queue.extend(_below(name, value))
    return found


def _note(found: CapturedState, name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.tensors[name] = value
        if value.is_leaf and value.grad is not None:
            found.tensors[f"{name}.grad"] = value.grad
    elif isinstance(value, Optimizer):
        found.optimizers[name] = value
    elif isinstance(value, torch.nn.Module):
        found.modules[name] = value
    elif isinstance(value, torch.Generator):
        found.generators[name] = value


def _roots(frame: types.FrameType | None) -> Iterator[tuple[str, Any]]:
    frames: list[types.FrameType] = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(RONDE):
            frames.append(frame)
        elif frame.f_code.co_name == "execute":  # which has begun the script
            break
        frame = frame.f_back
    for depth, each in enumerate(reversed(frames)):
        if each.f_locals is not each.f_globals:
            for name, value in each.f_locals.items():
                yield f"{each.f_code.co_name}@{depth}.{name}", value
    for module_name in sorted(sys.modules):
        module = sys.modules[module_name]
        if isinstance(module, types.ModuleType) and _is_of_script(module_name, module):
            for name, value in list(vars(module).items()):
                if not name.startswith("__"):
                    yield f"{module_name}.{name}", value


@functools.cache  # of thousands of modules, at every checkpoint
def _is_of_script(name: str, module: types.ModuleType) -> bool:
    if is_library(file_of(module)):
        return False
    return name == "__main__" or is_users_module(module)


def _in_module(name: str, module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for children in (module._parameters, module._buffers, module._modules):
        for key, child in children.items():
            yield f"{name}.{key}", child
    yield from _attributes(name, module)


def _below(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield values that can be reached from a value in one step."""
    if isinstance(value, torch.Tensor):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{name}[{_key(key)}]", item
        yield from _attributes(name, value)
    elif isinstance(value, (list, tuple, collections.deque)):
        for index, item in enumerate(value):
            yield f"{name}[{index}]", item
        yield from _attributes(name, value)
    elif isinstance(value, types.FunctionType):
        for index, cell in enumerate(value.__closure__ or ()):
            try:
                yield f"{name}.<{value.__code__.co_freevars[index]}>", cell.cell_contents
            except ValueError:  # empty
                continue
        for index, item in enumerate(value.__defaults__ or ()):
            yield f"{name}.<default {index}>", item
    elif isinstance(value, types.MethodType):
        yield f"{name}.__self__", value.__self__
        yield f"{name}.__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield f"{name}.func", value.func
        yield f"{name}.args", value.args
        yield f"{name}.keywords", value.keywords
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None and not value.gi_running:
            for local, item in value.gi_frame.f_locals.items():
                yield f"{name}.<{local}>", item
    elif isinstance(value, Optimizer):
        # Its state is saved separately; groups may hold rates that are tensors.
        for index, group in enumerate(value.param_groups):
            for key, item in group.items():
                yield f"{name}.param_groups[{index}][{key}]", item
    elif not _is_opaque(value):
        yield from _attributes(name, value)


def _attributes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        for key, item in list(own.items()):
            yield f"{name}.{key}", item
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            if slot not in ("__dict__", "__weakref__"):
                try:
                    yield f"{name}.{slot}", getattr(value, slot)
                except AttributeError:
                    continue


def _is_opaque(value: Any) -> bool:
    module = type(value).__module__ or ""
    return isinstance(value, (*_DATA, random.Random)) or module.partition(".")[0] in (
        "ronde",
        "weakref",
        "threading",
    )


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, _PLAIN) else type(key).__name__
