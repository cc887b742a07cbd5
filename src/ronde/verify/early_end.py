"""Ends a script before its own end, although threads may wait for its data."""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import contextlib
import gc
import io
import os
import threading
import time
from typing import Any

__all__ = ["EnoughSteps", "end_early"]

# Seconds that the interpreter waits for threads.
_PATIENCE_S = 2.0


class EnoughSteps(SystemExit):
    """Ends a script after the asked number of steps, as `sys.exit(0)` would, past `except Exception`."""

    def __init__(self) -> None:
        super().__init__(0)


def end_early() -> None:
    """End the script here.

    Raises:
        EnoughSteps: raised to end the script.
    """
    # Runs before the interpreter waits for threads; `atexit` would run after.
    register: Any = threading._register_atexit  # pyright: ignore[reportAttributeAccessIssue]
    register(_leave_behind)
    raise EnoughSteps


def _leave_behind() -> None:
    """Exit without threads that never end, such as one that waits for its queue."""
    workers: Any = concurrent.futures.thread
    workers._shutdown = True
    for queue in list(workers._threads_queues.values()):
        queue.put(None)  # as pools do at their end, which wait without a limit
    others = [each for each in threading.enumerate() if each is not threading.current_thread()]
    until = time.monotonic() + _PATIENCE_S
    for thread in others:
        if not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() and not thread.daemon for thread in others):
        atexit._run_exitfuncs()
        for each in gc.get_objects():
            with contextlib.suppress(Exception):
                if isinstance(each, io.IOBase) and not each.closed:
                    each.flush()
        os._exit(0)
