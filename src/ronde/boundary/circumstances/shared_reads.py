"""What the script reads of values that it shares with its processes: on every rank what the main rank reads.

A number in shared memory (`multiprocessing.Value`) and what a manager holds (a namespace, a dict, a list)
change when another process pleases, which is another moment on each rank.
"""

from __future__ import annotations

import functools
import multiprocessing.managers
import multiprocessing.sharedctypes
import pickle
from collections.abc import Callable
from typing import Any

from ronde.boundary.caller import called_by_script
from ronde.boundary.circumstances.agreement import Agreement
from ronde.boundary.circumstances.outcomes import given, outcome_of, packed
from ronde.boundary.patches import Patches
from ronde.comm.process_group import Comm

__all__ = ["SharedReads"]

# Methods of what a manager holds, by its kind, whose results depend on what others have written.
_READS: dict[str, set[str]] = {
    "Namespace": {"__getattribute__"},
    "Value": {"get"},
    "Array": {"__getitem__", "__len__"},
    "Iterator": {"__next__"},
    "list": {"__contains__", "__getitem__", "__len__", "count", "index", "pop"},
    "dict": {
        *("__contains__", "__getitem__", "__len__", "copy", "get", "items", "keys"),
        *("pop", "popitem", "setdefault", "values"),
    },
}
# A copy of the whole.
_ALL = "#GETVALUE"
# The frames between a script and the call: methods of proxies, of which some are made by `exec`.
_THROUGH = ("multiprocessing.managers", "")


class SharedReads:
    """Replaces the ways by which a script's main thread reads such values.

    Args:
        in_step: whether the code that runs now is run by all ranks together.
    """

    def __init__(self, comm: Comm, agree: Agreement, in_step: Callable[[], bool]) -> None:
        self._comm = comm
        self._agree = agree
        self._in_step = in_step

    def install(self, patches: Patches) -> None:
        shared: Any = multiprocessing.sharedctypes.Synchronized
        patches.set(shared, "value", property(self._value(shared.value.fget), shared.value.fset))
        proxy: Any = multiprocessing.managers.BaseProxy
        patches.set(proxy, "_callmethod", self._called(proxy._callmethod))

    def _value(self, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def value(shared: Any) -> Any:
            own = plain(shared)
            if not (called_by_script() and self._in_step()):
                return own
            return self._agree("multiprocessing.Value", own)

        return value

    def _called(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(proxy: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            reads = _READS.get(proxy._token.typeid)
            reading = reads is not None and (name in reads or name == _ALL)
            if not (reading and called_by_script(*_THROUGH) and self._in_step()):
                return plain(proxy, name, *args, **kwargs)
            return self._of_main(lambda: plain(proxy, name, *args, **kwargs))

        return call

    def _of_main(self, read: Callable[[], Any]) -> Any:
        """What the main rank reads, or the error that it gets; every rank reads, for what that changes."""
        outcome = outcome_of(read)
        told = self._comm.broadcast_object(packed(outcome, _Pickler) if self._comm.rank == 0 else None)
        return given(outcome if told is None or self._comm.rank == 0 else pickle.loads(told))


class _Pickler(pickle.Pickler):
    """
    Raises:
        pickle.PicklingError: of what leads to another rank's manager.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, multiprocessing.managers.BaseProxy):
            raise pickle.PicklingError
        return NotImplemented
