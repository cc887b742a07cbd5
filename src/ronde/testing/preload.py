"""Imports shared by forked test ranks: torch, its lazy modules, and ronde."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing

import ronde.runtime.session
import ronde.runtime.worker

importlib.import_module("torch._dynamo")  # a second of a core for each rank, at its optimizer's first step

with contextlib.suppress(ModuleNotFoundError):  # packages of parameter servers are an extra
    import ronde.server.process  # noqa: F401

__all__ = ["MAIN_PROCESS"]

#: Value of `multiprocessing.current_process()` in a process that it did not start.
MAIN_PROCESS = multiprocessing.current_process()
