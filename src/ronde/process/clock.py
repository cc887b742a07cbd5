"""What a script learns of its circumstances is rank 0's on every rank: the clock, and seeds.

A seed made of the time, a run named by it, a training that ends after an hour: each would take ranks apart.
So a reading of the clock by the script itself (or by a library that is known to name folders by it) is agreed
on, and the seed that a global generator is given. Libraries keep the clock of their process, because progress
bars and waiting loops do not read it equally often on all ranks; so do other threads, workers, and the inside
of a model that runs on shards.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import inspect
import random
import time
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy
import torch

from ronde.patching.caller import call_site, called_by_script
from ronde.patching.patches import Patches

__all__ = ["Agree", "Circumstances"]

Agree = Callable[[str, Any], Any]
"""Takes the name of a circumstance and this rank's own value; returns the one that all ranks go by."""

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
# Libraries that name directories by the date that they ask for.
_NAMERS = ("hydra.", "omegaconf.", "sacred.", "torch.utils.tensorboard.", "transformers.training_args.")
_BROKEN_DOWN = ("localtime", "gmtime", "ctime")


class Circumstances:
    """Replaces the functions by which a script learns of its circumstances.

    Args:
        agree: how ranks come to one value; a collective.
        in_step: whether the code that runs now is run by all ranks together.
        own_file: whether the file at a path is this rank's alone, and called otherwise on others.
    """

    def __init__(
        self,
        agree: Agree,
        in_step: Callable[[], bool],
        own_file: Callable[[str], bool] | None = None,
    ) -> None:
        self._agree_on = agree
        self._own_file = own_file or (lambda _: False)
        self._in_step = lambda: not self._ended and in_step()
        self._ended = False
        self._types: list[tuple[dict[str, Any], type, str, Any]] = []

    def install(self, patches: Patches) -> None:
        for name in _CLOCKS:
            patches.set(time, name, self._clock(name, getattr(time, name)))
        for name in _BROKEN_DOWN:
            patches.set(time, name, self._broken_down(getattr(time, name)))
        self._patch_strftime(patches)
        self._patch_dates()
        patches.set(random, "seed", self._seeding("random.seed", random.seed))
        patches.set(numpy.random, "seed", self._seeding("numpy.random.seed", numpy.random.seed))
        manual_seed = self._seeding("torch.manual_seed", torch.manual_seed)
        patches.set(torch, "manual_seed", manual_seed)
        patches.set(torch.random, "manual_seed", manual_seed)

    def uninstall(self) -> None:
        """Give the types of `datetime` their methods back; the rest is the register's to undo.

        Functions that somebody kept answer from now on as they would without ranks.
        """
        self._ended = True
        while self._types:
            methods, owner, name, original = self._types.pop()
            methods[name] = original
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))

    def _agree(self, what: str, value: Any) -> Any:
        return self._agree_on(f"{what} at {call_site(self._own_file)}", value)

    def _clock(self, name: str, plain: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(plain)
        def clock() -> Any:
            value = plain()
            if called_by_script() and self._in_step():
                return self._agree(f"time.{name}", value)
            return value

        return clock

    def _now(self, asked: bool, plain: Callable[[], float] = time.time) -> float:
        """The time of a date, for all ranks if the script asks for it (`asked`)."""
        return self._agree("the date", plain()) if asked and self._in_step() else plain()

    def _broken_down(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def broken_down(seconds: float | None = None, /) -> Any:
            if seconds is None and called_by_script():
                seconds = self._now(True)
            return plain(seconds)

        return broken_down

    def _patch_strftime(self, patches: Patches) -> None:
        plain, localtime = time.strftime, inspect.unwrap(time.localtime)

        @functools.wraps(plain)
        def strftime(format: str, *when: Any) -> str:
            if not when and called_by_script():
                when = (localtime(self._now(True)),)
            return plain(format, *when)

        patches.set(time, "strftime", strftime)

    def _patch_dates(self) -> None:
        """`datetime.now` and `date.today`, in the types themselves.

        Classes in their place would not be the types of the values that they make.
        """

        def now(cls: Any, tz: Any = None) -> Any:
            return cls.fromtimestamp(self._now(called_by_script(or_by=_NAMERS)), tz)

        def utcnow(cls: Any) -> Any:
            asked = called_by_script(or_by=_NAMERS)
            return cls.fromtimestamp(self._now(asked), datetime.timezone.utc).replace(tzinfo=None)

        def today(cls: Any) -> Any:
            return cls.fromtimestamp(self._now(called_by_script(or_by=_NAMERS)))

        self._set_method(datetime.datetime, "now", classmethod(now))
        self._set_method(datetime.datetime, "utcnow", classmethod(utcnow))
        self._set_method(datetime.date, "today", classmethod(today))

    def _set_method(self, owner: type, name: str, method: Any) -> None:
        methods = gc.get_referents(vars(owner))[0]
        self._types.append((methods, owner, name, methods[name]))
        methods[name] = method
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))

    def _seeding(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def seed(*args: Any, **kwargs: Any) -> Any:
            # Without an argument the seed is drawn from the entropy that ranks share already.
            if len(args) == 1 and isinstance(args[0], Integral) and not kwargs and self._in_step():
                args = (self._agree(name, int(args[0])),)
            elif not args and len(kwargs) == 1 and self._in_step():
                ((key, value),) = kwargs.items()
                kwargs = {key: self._agree(name, int(value))} if isinstance(value, Integral) else kwargs
            return plain(*args, **kwargs)

        return seed
