"""Records where the script starts processes and threads, which run at their own pace."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from ronde.verify.record import Writer
from ronde.verify.sites import Sites

__all__ = ["StartRecorder"]


class StartRecorder:
    """Wraps the calls that start them; those of a loader or a library's import are not the script's."""

    def __init__(self, writer: Writer, sites: Sites) -> None:
        self._writer = writer
        self._sites = sites

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
            return original(*args, **kwargs)

        return start
