"""Tracks threads and processes that the script starts, which are not in step."""

from __future__ import annotations

import multiprocessing.process
import threading
from collections.abc import Callable
from typing import Any

from ronde.patching.caller import is_users
from ronde.patching.other_threads import is_of_script
from ronde.patching.patches import Patches

__all__ = ["StartedThreads"]


class StartedThreads:
    """Records the threads and processes that the main thread starts.

    Args:
        in_step: function that returns whether the current code runs on all ranks together, so that all record
            the same.
        began: function to call at each start.

    Attributes:
        functions: the names of the script's functions that processes run, in order of their start.
    """

    def __init__(self, in_step: Callable[[], bool], began: Callable[[], None]) -> None:
        self.functions: dict[str, None] = {}
        self._in_step = in_step
        self._began = began

    def install(self, patches: Patches) -> None:
        plain_process: Any = multiprocessing.process.BaseProcess.start
        plain_thread = threading.Thread.start

        def start_process(process: Any) -> None:
            target = getattr(process, "_target", None)
            # Workers of a loader are not recorded: batches come in order.
            loads = str(getattr(target, "__module__", "")).startswith("torch.utils.data.")
            if not loads and self._in_step():
                self._began()
                # `torch.multiprocessing.spawn` wraps the function in one of torch's.
                for each in (target, *getattr(process, "_args", ())[:1]):
                    if callable(each) and is_users(each):
                        self.functions.setdefault(getattr(each, "__name__", type(each).__name__))
            plain_process(process)

        def start_thread(thread: threading.Thread) -> None:
            if is_of_script(thread) and self._in_step():
                self._began()
            plain_thread(thread)

        patches.set(multiprocessing.process.BaseProcess, "start", start_process)
        patches.set(threading.Thread, "start", start_thread)
