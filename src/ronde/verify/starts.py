"""Records where the script starts processes and threads, which run at their own pace."""

from __future__ import annotations

import functools
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Process
from multiprocessing.context import ForkProcess
from multiprocessing.process import BaseProcess
from typing import Any

from ronde.verify.call_sites import Sites
from ronde.verify.record import Writer

__all__ = ["StartRecorder"]


# Longer than the usual variation of such a process or thread, and too short to disturb.
_DELAY_S = 0.3


class StartRecorder:
    """Wraps the calls that start processes and threads of the script.

    Starts by a loader or by a library's import do not count.

    Args:
        delay: whether to hold the first one back, so that results that depend on its pace differ.
    """

    def __init__(self, writer: Writer, sites: Sites, *, delay: bool = False) -> None:
        self._writer = writer
        self._sites = sites
        self._delay = delay

    def install(self) -> None:
        for kind, name, what in (
            (BaseProcess, "start", "process"),
            (subprocess.Popen, "__init__", "process"),
            (threading.Thread, "start", "thread"),
        ):
            setattr(kind, name, self._wrapped(getattr(kind, name), what))

    def _wrapped(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            if self._writer.active and (where := self._sites.of(sys._getframe(1))) is not None:
                self._writer.event("start", what=what, where=where)
                if self._delay and _can_be_delayed(args[0]):
                    self._delay = False
                    args[0].run = _delayed(args[0].run)
            return original(*args, **kwargs)

        return start


def _delayed(run: Callable[[], Any]) -> Callable[[], Any]:
    def wait_and_run() -> Any:
        time.sleep(_DELAY_S)
        return run()

    return wait_and_run


def _can_be_delayed(started: object) -> bool:
    """Return whether the start can be delayed: by a fork or thread, without pickling."""
    forks = isinstance(started, Process) and multiprocessing.get_start_method() == "fork"
    return forks or isinstance(started, (threading.Thread, ForkProcess))
