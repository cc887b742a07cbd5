"""Functions of the script that it runs in processes of its own, where nothing is cut."""

from __future__ import annotations

import multiprocessing.process
import os
from typing import Any

from ronde.boundary.patches import Patches
from ronde.boundary.reach import is_users

__all__ = ["ChildProcesses"]


class ChildProcesses:
    """Learns of processes that are started by `multiprocessing`.

    Attributes:
        functions: the names of the script's functions that they run, in the order in which they came.
    """

    def __init__(self) -> None:
        self.functions: dict[str, None] = {}
        self._process = os.getpid()

    def install(self, patches: Patches) -> None:
        plain: Any = multiprocessing.process.BaseProcess.start

        def start(process: Any) -> None:
            if os.getpid() == self._process:
                # `torch.multiprocessing.spawn` gives the function to one of its own.
                for each in (getattr(process, "_target", None), *getattr(process, "_args", ())[:1]):
                    if callable(each) and is_users(each):
                        self.functions.setdefault(getattr(each, "__name__", type(each).__name__))
            plain(process)

        patches.set(multiprocessing.process.BaseProcess, "start", start)
