"""What stands around a trial run of a model, so that it harms nothing and nothing escapes notice."""

from __future__ import annotations

import builtins
import io
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ronde.patching.caller import is_users
from ronde.patching.muted_warnings import muted_warnings
from ronde.patching.thread_stream import redirected
from ronde.tensor.memory import memory, tensors, written

__all__ = [
    "ForeignWrites",
    "Marks",
    "Refusal",
    "apart",
    "irrevocable",
    "short",
]


class Refusal(Exception):
    """The module must not be cut; the message is the reason."""


def irrevocable(what: str) -> Refusal:
    """A module must not be cut because of what has no way back: an iterator, an open file, a queue."""
    return Refusal(f"it uses {what}, which a trial could not put back")


def short(error: Exception) -> str:
    """What an error says first."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__


class ForeignWrites(TorchDispatchMode):
    """Stops a write to memory that is not the model's own before it is done: to a parameter, an argument,
    a tensor from elsewhere. Buffers of the trial's copy and what the trial has made itself may be written.

    Args:
        own: memory of the copy's buffers and other tensors.
        named: memory that is to be called by a name.
    """

    def __init__(self, own: Iterable[torch.Tensor], named: dict[int, str]) -> None:
        super().__init__()
        self._named = named
        self._own = {place for tensor in own if (place := memory(tensor)) is not None} - named.keys()
        self.shapes = 0
        self.refused = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in written(func, args, kwargs):
                self._check(memory(tensor), func)
        result = func(*args, **kwargs)
        self.seen(func, args, kwargs, result)
        return result

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation has been carried out."""
        inside = {memory(value) for value in tensors((args, tuple(kwargs.values())))}
        new = func is torch.ops.aten.lift_fresh.default
        for value in tensors(result):
            place = memory(value)
            if place is not None and (new or place not in inside):
                self._own.add(place)
            self.shapes = hash((self.shapes, func, tuple(value.shape)))

    def _check(self, place: int | None, func: Any) -> None:
        if place is None or place in self._own:
            return
        what = self._named.get(place, "a tensor that is none of its own")
        self.refused = f"it changes {what} in place ({func._schema.name.split('::')[1]})"
        raise Refusal(self.refused)


class Marks(TorchFunctionMode):
    """Refuses what is done to a tensor object rather than to its memory: hooks, `.data =`, `requires_grad_`.

    Args:
        held: ids of parameters and arguments.
    """

    def __init__(self, held: dict[int, str]) -> None:
        super().__init__()
        self._held = held
        self.refused = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _HOOKS:
            self._refuse(f"it asks for gradients inside ({name}), which would be those of one rank's rows")
        if (name == "__set__" or func is torch.Tensor.requires_grad_) and args and id(args[0]) in self._held:
            what = name if name != "__set__" else f".{func.__self__.__name__} ="
            self._refuse(f"it changes {self._held[id(args[0])]} ({what})")
        return func(*args, **(kwargs or {}))

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        raise Refusal(reason)


# By name: a session replaces some of them.
_HOOKS = {"register_hook", "retain_grad", "register_post_accumulate_grad_hook"}


@contextmanager
def apart(told: dict[str, str]) -> Iterator[None]:
    """Inside, nothing is printed, logged, warned of or written; what would have been said is in `told`.

    Of this thread: others of the script print and write as ever.
    """
    printed, logged, thread = io.StringIO(), [], threading.get_ident()
    plain_handle, plain_open, plain_io = logging.Logger.handle, builtins.open, io.open

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() != thread:
            return plain_handle(logger, record)
        logged.append(record.getMessage())

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        own = threading.get_ident() == thread and is_users(sys._getframe(1).f_code)
        if own and set(mode) & set("wax+"):
            raise Refusal(f"it opens a file for writing ({file})")
        return plain_open(file, mode, *args, **kwargs)

    grad = torch.is_grad_enabled()
    logging.Logger.handle, builtins.open, io.open = handle, opened, opened  # type: ignore[assignment]
    try:
        with (
            redirected("stdout", printed),
            redirected("stderr", printed),
            muted_warnings(),
            torch.set_grad_enabled(grad),
            # A checkpoint around the call counts what is saved for backward; a trial is none of it.
            torch.autograd.graph.saved_tensors_hooks(_itself, _itself),
        ):
            yield
    finally:
        logging.Logger.handle, builtins.open, io.open = plain_handle, plain_open, plain_io  # type: ignore[assignment]
        told["what it prints"], told["what it logs"] = printed.getvalue(), "\n".join(logged)


def _itself(value: Any) -> Any:
    return value.detach()  # without its graph: what saves its own result would hold itself for ever
