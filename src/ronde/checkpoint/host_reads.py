"""Function mode that observes values read by the script, and value-dependent shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ronde.patching.torch_internals import (
    count_function_modes,
    function_mode_at,
    push_function_mode,
    take_function_mode,
)
from ronde.trace.script_line import RONDE

__all__ = ["HostReads"]

_READS = frozenset(
    "item tolist numpy __array__ __bool__ __float__ __int__ __index__ __complex__ __contains__ __format__ "
    "__repr__ __str__ equal allclose is_nonzero".split()
)
_SHAPED_BY_VALUES = frozenset(
    "nonzero argwhere masked_select unique _unique2 unique_consecutive unique_dim _unique_impl "
    "_unique_consecutive_impl _return_output _return_inverse _return_counts _consecutive_return_output "
    "_consecutive_return_inverse _consecutive_return_counts bincount".split()
)


class HostReads(TorchFunctionMode):
    """Function mode below all modes that the script enters.

    Args:
        read: runs a reading: takes its name and a function that makes the answer; returns the answer.
        shaped: the same for an operation whose result's shape depends on values.
    """

    def __init__(
        self,
        read: Callable[[str, Callable[[], Any]], Any],
        shaped: Callable[[str, Callable[[], Any]], Any],
    ) -> None:
        super().__init__()
        self._read, self._shaped = read, shaped
        self._through: dict[CodeType, str] = {}

    def hear_through(self, wrapper: Callable[..., Any], name: str) -> None:
        """Count readings inside ronde's own `wrapper` as readings `name` of the script."""
        self._through[wrapper.__code__] = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1).f_code
        if caller.co_filename.startswith(RONDE) and self._through.get(caller) != name:
            return func(*args, **kwargs)
        if name in _READS:
            return self._read(name, lambda: func(*args, **kwargs))
        if name in _SHAPED_BY_VALUES or (
            name in ("__getitem__", "where", "repeat_interleave") and _by_values(name, args)
        ):
            return self._shaped(name, lambda: func(*args, **kwargs))
        return func(*args, **kwargs)

    def begin(self) -> None:
        """Start recording this thread's readings."""
        above = _taken_off(count_function_modes())
        push_function_mode(self)
        _put_on(above)

    def end(self) -> None:
        """Stop recording."""
        above = self._above()
        if above is not None:
            _put_on(above)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Suspend recording inside the `with` block."""
        above = self._above()
        if above is None:
            yield
            return
        _put_on(above)
        try:
            yield
        finally:
            self.begin()

    def _above(self) -> list[Any] | None:
        """Pop this mode with the modes above it, and return these.

        None, and no change, if it is not on the stack.
        """
        count = count_function_modes()
        for index in range(count):
            if function_mode_at(index) is self:
                above = _taken_off(count - index - 1)
                take_function_mode()
                return above
        return None


def _taken_off(count: int) -> list[Any]:
    return [take_function_mode() for _ in range(count)]


def _put_on(modes: list[Any]) -> None:
    for mode in reversed(modes):
        push_function_mode(mode)


def _by_values(name: str, args: Any) -> bool:
    """Return whether values of a tensor decide the shape of the result."""
    if name == "where":
        return len(args) == 1
    if name == "repeat_interleave":
        return len(args) == 1 or isinstance(args[1], torch.Tensor)
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in index)
