"""Programs and processes that the script starts.

A program that the script runs and waits for is run once, by the main rank: it may write files, of which
nobody here would know. What it printed and how it ended is known on every rank; a thread of another rank
waits for that. Processes of the script's own (pools) run on every rank; when the script has waited for them,
ranks wait for one another, because files that such processes write are written by those of every rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ronde.boundary.caller import called_by_script
from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.programs_of_threads import STARTERS, ProgramsOfThreads

__all__ = ["PROGRAMS", "WAITS", "once", "waiting"]

PROGRAMS = (
    ("subprocess", "run"),
    ("subprocess", "call"),
    ("subprocess", "check_call"),
    ("subprocess", "check_output"),
    ("subprocess", "getoutput"),
    ("subprocess", "getstatusoutput"),
    ("os", "system"),
)

WAITS = (
    ("multiprocessing.pool", "Pool.__exit__"),
    ("multiprocessing.pool", "Pool.join"),
    ("multiprocessing.process", "BaseProcess.join"),
    ("concurrent.futures.process", "ProcessPoolExecutor.shutdown"),
    ("concurrent.futures._base", "Executor.__exit__"),
)


def once(
    mediation: Mediation, of_threads: ProgramsOfThreads, label: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    """`original`, which runs a program to its end, on the main rank; its result or failure on all."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        # A library may have reasons to start a program on one rank and not on another (a compiler).
        if called_by_script() and mediation.governs():
            return mediation.meet(label, label, lambda: original(*args, **kwargs)).value
        if called_by_script(or_by=STARTERS) and of_threads.called():
            return of_threads.run(label, args, kwargs, original)
        return original(*args, **kwargs)

    return run


def waiting(mediation: Mediation, label: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which waits for processes of the script; after it, wait for those of the other ranks."""

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if called_by_script() and mediation.governs() and not _in_part(args, kwargs):
            mediation.meet(label, label, lambda: None)
        return result

    return wait


def _in_part(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it was asked to wait for a time only, or not at all: ranks may ask unequally often."""
    if kwargs.get("timeout") is not None or kwargs.get("wait") is False:
        return True
    return len(args) == 2 and args[1] not in (None, True)
