"""Programs that a thread of the script starts: one, started by the main rank's thread.

A program works on the real files, so a thread of another rank does not start it, but waits for how the main
rank's same one went: that with the same arguments in the same folder, the first, second, ... of its kind.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ronde.boundary.files.mediation import Mediation, portable
from ronde.boundary.files.named_paths import named_paths, words
from ronde.boundary.files.thread_names import ThreadNames

__all__ = ["STARTERS", "ProgramsOfThreads"]

STARTERS = ("threading.", "concurrent.futures.", "multiprocessing.pool.")
"""Modules that call what a thread is to do."""

_PAUSE_S = 0.02


class ProgramsOfThreads:
    """Those of one rank; on other ranks than the main one a thread may wait here."""

    def __init__(self, mediation: Mediation) -> None:
        self._mediation = mediation
        self._names = ThreadNames()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._turn = 0

    def remember(self, thread: threading.Thread) -> None:
        """The script is about to start a thread."""
        name = self._names.give(thread)
        if name is not None and self._mediation.is_main:
            run = functools.partial(self._run_and_tell, thread, thread.run, name)
            thread.run = run

    def called(self) -> bool:
        """Whether a call made here and now is one of a thread, which may wait for the main rank's."""
        return not self._mediation.collecting() and self._mediation.in_thread()

    def leave(self) -> None:
        """From now on threads of this rank start programs by themselves."""
        if self._mediation.is_main and self._mediation.had_threads:
            self._tell_over("all")
        self._turn += 1

    def is_each_ranks_own(self, command: Any, options: Mapping[str, Any]) -> bool:
        """Whether it works on temporary files, of which every rank has its own; the user is told of that."""
        if not self._mediation.paths.names_private(*words(command), *named_paths(command, options)):
            return False
        name = os.path.basename(words(command)[0].split(" ")[0])
        self._mediation.note(
            f"{name!r} was started by every rank, because a thread gives it a temporary file, "
            f"of which each rank has its own"
        )
        return True

    def key(self, label: str, command: Any, options: Mapping[str, Any]) -> str:
        """What the one that is started now is called on all ranks."""
        alike = repr([label, words(command), os.path.abspath(os.fsdecode(options.get("cwd") or ""))])
        with self._lock:
            self._counts[alike] += 1
            return f"program {self._turn} {self._counts[alike]} {alike}"

    def outcome(self, key: str, act: Callable[[], Any], worked: Callable[[int], None]) -> Any:
        """What `act` returned or raised in the main rank's thread.

        Args:
            worked: is given how many changes of files the main rank's threads had told when it was done.

        Raises:
            SystemExit: the main rank's thread has ended without.
        """
        value, failure, position = self._act(key, act) if self._mediation.is_main else self._awaited(key)
        worked(position)
        if failure is not None:
            raise failure
        return value

    def run(self, label: str, args: tuple[Any, ...], kwargs: dict[str, Any], act: Callable[..., Any]) -> Any:
        """`act` on these arguments, whose first is the command."""
        command = args[0] if args else next(iter(kwargs[key] for key in _COMMANDS if key in kwargs))
        if self.is_each_ranks_own(command, kwargs):
            return act(*args, **kwargs)

        def run() -> Any:
            with self._mediation.unmediated():
                return act(*args, **kwargs)

        key = self.key(label, command, kwargs)
        return self.outcome(key, run, self.worked_on(named_paths(command, kwargs)))

    def worked_on(self, paths: list[str]) -> Callable[[int], None]:
        """What is to be done when a program that was told of these paths has ended; see `outcome`."""
        return functools.partial(self._mediation.worked_on, paths)

    def _act(self, key: str, act: Callable[[], Any]) -> tuple[Any, Exception | None, int]:
        value: Any = None
        failure: Exception | None = None
        try:
            value = act()
        except Exception as error:
            failure = error
        position = self._mediation.beginnings.position
        word = pickle.dumps((value, portable(failure), position))
        self._mediation.tell(key, base64.b64encode(word).decode())
        return value, failure, position

    def _awaited(self, key: str) -> tuple[Any, Exception | None, int]:
        names = ["all", *filter(None, [self._names.current()])]
        over = [self._over(name) for name in names]
        while True:
            ended = any(self._mediation.told(name) is not None for name in over)
            word = self._mediation.told(key)
            if word is not None:
                return pickle.loads(base64.b64decode(word))
            if ended:  # a thread that asks again and again may be one turn ahead of the main rank's
                raise SystemExit
            time.sleep(_PAUSE_S)

    def _run_and_tell(self, thread: threading.Thread, run: Callable[[], None], name: str) -> None:
        try:
            run()
        finally:
            vars(thread).pop("run", None)
            self._tell_over(name)

    def _tell_over(self, name: str) -> None:
        with contextlib.suppress(RuntimeError):  # where ranks met is gone: so are they
            self._mediation.tell(self._over(name), "")

    def _over(self, name: str) -> str:
        return f"over {self._turn} {name}"


_COMMANDS = ("args", "command", "cmd")
