"""The clock that a script reads is rank 0's on every rank.

A seed made from the time, a run named by it, a training that stops after an hour: each would make ranks
diverge. So ranks agree on each reading of the clock by the script itself, or by a library that is known to
name folders by the time. Libraries keep the clock of their process, because progress bars and waiting loops
do not read it equally often on all ranks; so do other threads, workers, and the inside of a model that runs
on shards.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import inspect
import time
from collections.abc import Callable
from typing import Any

from ronde.patching.caller import call_site, called_by_script
from ronde.patching.patches import Patches

__all__ = ["Agree", "Circumstances"]

Agree = Callable[[str, Any], Any]
"""Function from a circumstance's name and this rank's own value to the value for all ranks."""

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
# Libraries that name directories by the date.
_NAMERS = ("hydra.", "omegaconf.", "sacred.", "torch.utils.tensorboard.", "transformers.training_args.")
_AT_A_TIME = {"localtime": 0, "gmtime": 0, "ctime": 0, "strftime": 1}
"""Functions of a time, by the place of that argument; without it they read the clock."""


class Circumstances:
    """Patches the functions by which a script reads the clock.

    Args:
        agree: function by which ranks agree on one value; a collective.
        in_step: function that tells whether the current code runs on all ranks together.
    """

    def __init__(self, agree: Agree, in_step: Callable[[], bool]) -> None:
        self._agree_on = agree
        self._in_step = lambda: not self._ended and in_step()
        self._ended = False

    def install(self, patches: Patches) -> None:
        for name in _CLOCKS:
            patches.set(time, name, self._clock(name, getattr(time, name)))
        for name, place in _AT_A_TIME.items():
            patches.set(time, name, self._at_a_time(getattr(time, name), place))
        self._patch_dates(patches)

    def uninstall(self) -> None:
        """Make references kept by others (`from time import time`) behave normally again."""
        self._ended = True

    def _agree(self, what: str, value: Any) -> Any:
        return self._agree_on(f"{what} at {call_site()}", value)

    def _clock(self, name: str, plain: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(plain)
        def clock() -> Any:
            value = plain()
            if called_by_script() and self._in_step():
                return self._agree(f"time.{name}", value)
            return value

        return clock

    def _now(self, asked: bool, plain: Callable[[], float] = time.time) -> float:
        """Return the time for a date, agreed on if the script asked for it."""
        return self._agree("the date", plain()) if asked and self._in_step() else plain()

    def _at_a_time(self, plain: Callable[..., Any], place: int) -> Callable[..., Any]:
        localtime = inspect.unwrap(time.localtime)

        @functools.wraps(plain)
        def at_a_time(*args: Any) -> Any:
            if args[place:] in ((), (None,)) and called_by_script():
                now = self._now(True)
                args = (*args[:place], localtime(now) if place else now)
            return plain(*args)

        return at_a_time

    def _patch_dates(self, patches: Patches) -> None:
        """Replace `datetime.now`, `utcnow` and `today`, in the types themselves.

        Substitute classes would not be the types of the values that they make.
        """

        def now(cls: Any, tz: Any = None) -> Any:
            return cls.fromtimestamp(self._now(called_by_script(or_by=_NAMERS)), tz)

        def utcnow(cls: Any) -> Any:
            asked = called_by_script(or_by=_NAMERS)
            return cls.fromtimestamp(self._now(asked), datetime.timezone.utc).replace(tzinfo=None)

        def today(cls: Any) -> Any:
            return cls.fromtimestamp(self._now(called_by_script(or_by=_NAMERS)))

        for owner, method in ((datetime.datetime, now), (datetime.datetime, utcnow), (datetime.date, today)):
            original = vars(owner)[method.__name__]
            _set_method(owner, method.__name__, classmethod(method))
            patches.undo(functools.partial(_set_method, owner, method.__name__, original))


def _set_method(owner: type, name: str, method: Any) -> None:
    gc.get_referents(vars(owner))[0][name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
