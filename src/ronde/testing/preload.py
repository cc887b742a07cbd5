"""What ranks of tests share by fork: torch, what it imports at the first step, and the rooms of ronde."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing

import ronde.runtime.session
import ronde.runtime.worker

importlib.import_module("torch._dynamo")  # a second of a core for each rank, at its optimizer's first step

with contextlib.suppress(ModuleNotFoundError):  # what parameter servers need is an extra
    import ronde.server.process  # noqa: F401

__all__ = ["MAIN_PROCESS"]

#: What `multiprocessing.current_process()` is in a process that it did not start.
MAIN_PROCESS = multiprocessing.current_process()
