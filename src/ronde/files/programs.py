"""Replaces starts of programs and processes by the script.

A program that the script's main thread runs to its end runs once, on rank 0: it may write files, unseen by
ronde. Its output and exit code are known on every rank. A program that runs concurrently with the script, or
that a thread starts, is started by every rank, with a note to the user.

Processes that the script forks (pools) run on every rank; when the script has waited for them, ranks wait for
one another, because spawned ones write the real files on each.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ronde.errors import UsageError
from ronde.files.rank_files import RankFiles
from ronde.patching.caller import called_by_script

__all__ = ["PROGRAMS", "WAITS", "once", "starting", "waiting"]

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
_STARTERS = ("threading.", "concurrent.futures.", "multiprocessing.pool.")
"""Modules that call the target of a thread."""


def once(files: RankFiles, label: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `plain`, which runs a program to its end, to run on rank 0.

    The result or failure is the same on all ranks.
    """

    @functools.wraps(plain)
    def run(*args: Any, **kwargs: Any) -> Any:
        # A library may have reasons to start a program on one rank and not on another (a compiler).
        if called_by_script() and files.callers.in_step():
            return files.alike(label, lambda: plain(*args, **kwargs))
        if called_by_script(or_by=_STARTERS):
            _say_of_threads(files, args[0] if args else next(iter(kwargs.values()), ""))
        return plain(*args, **kwargs)

    return run


def waiting(files: RankFiles, label: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `plain`, which waits for processes of the script, with a barrier."""

    @functools.wraps(plain)
    def wait(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if called_by_script() and files.callers.in_step() and not _in_part(args, kwargs):
            files.alike(label, lambda: None)
        return result

    return wait


def starting(files: RankFiles, plain: Callable[..., None]) -> Callable[..., None]:
    """Wrap `subprocess.Popen.__init__`, to wait for the script's earlier writes first."""

    @functools.wraps(plain)
    def initialize(program: Any, args: Any, *rest: Any, **options: Any) -> None:
        files.before_child()
        if called_by_script() and files.callers.in_step():
            files.note(
                f"{_name(args)!r} was started by every rank, because the script goes on while it runs; "
                f"subprocess.run starts a program once [R319]"
            )
        elif called_by_script(or_by=_STARTERS):
            _say_of_threads(files, args)
        plain(program, args, *rest, **options)

    return initialize


def _say_of_threads(files: RankFiles, command: Any) -> None:
    """Note that a thread of the script starts a program, on every rank.

    Raises:
        UsageError: its arguments name a file that threads have made, which has another path on other ranks.
    """
    if not files.callers.is_beside():
        return
    texts = [part for word in _words(command) for part in word.replace("=", " ").split()]
    made = next(filter(files.made_by_threads, texts), None)
    if made is not None:
        raise UsageError(
            f"a thread of the script starts {_name(command)!r} on {made!r}, which a thread has written, and "
            f"which other ranks have elsewhere; start the program in the main thread [R375]"
        )
    files.note(
        f"{_name(command)!r} was started by every rank, because a thread of the script starts it; started "
        f"in the main thread it runs once [R319]"
    )


def _words(command: Any) -> list[str]:
    """Return a command as a list of texts, from a shell line or arguments."""
    parts = [command] if isinstance(command, (str, bytes, os.PathLike)) else list(command)
    return [os.fsdecode(part) for part in parts]


def _name(command: Any) -> str:
    return os.path.basename(_words(command)[0].split(" ")[0])


def _in_part(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the wait may end early: ranks may call it unequally often."""
    if kwargs.get("timeout") is not None or kwargs.get("wait") is False:
        return True
    return len(args) == 2 and args[1] not in (None, True)
