"""Programs that the script starts by `subprocess.Popen`, and goes on: one, started by the main rank.

Every rank has an object for it, whose methods are meetings: whether it has ended, and how, all know alike.
Where the script reads what the program prints as it runs, each rank needs one of its own, and that is said.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

from ronde.boundary.caller import called_by_script
from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.named_paths import named_paths
from ronde.boundary.files.programs_of_threads import STARTERS, ProgramsOfThreads

__all__ = ["sharing"]

_PAUSE_S = 0.02


class _Program(subprocess.Popen[Any]):
    """The program as a rank sees it.

    Attributes:
        mediation: the meetings; the process itself is the main rank's.
        plain: the class that it would be in plain Python.
        key: under which the main rank leaves word of its end, for threads, which cannot meet.
        worked: to be called when it has ended; see `ProgramsOfThreads.worked_on`.
    """

    mediation: Mediation
    plain: Any
    key: str
    worked: Callable[[int], None]

    def poll(self) -> int | None:
        return self._shared("poll", lambda: self.plain.poll(self), self._told)

    def wait(self, timeout: float | None = None) -> int:
        return self._shared("wait", lambda: self.plain.wait(self, timeout), lambda: self._awaited(timeout))

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
        def communicate() -> Any:
            return self.plain.communicate(self, input, timeout)

        def elsewhere() -> Any:
            self._awaited(timeout)
            return None, None

        return self._shared("communicate", communicate, elsewhere)

    def send_signal(self, sig: int) -> None:
        self._shared("send_signal", lambda: self.plain.send_signal(self, sig), lambda: None)

    def _shared(self, name: str, act: Callable[[], Any], elsewhere: Callable[[], Any]) -> Any:
        """What `act` returns on the main rank; `elsewhere` stands for it in threads of other ranks."""
        mediation = self.mediation

        def act_and_tell() -> tuple[Any, int | None]:
            try:
                return act(), self.returncode
            finally:
                if self.returncode is not None:
                    position = mediation.beginnings.position
                    mediation.tell(self.key, f"{self.returncode} {position}")
                    self._ended(position)

        if mediation.governs():
            value, code = mediation.meet(f"Popen.{name}", str(self.args), act_and_tell).value
            if code is not None and not mediation.is_main:
                self._told()
            self.returncode = code
            return value
        return act_and_tell()[0] if mediation.is_main else elsewhere()

    def _told(self) -> int | None:
        word = self.mediation.told(self.key)
        if word is not None:
            code, position = word.split()
            self.returncode = int(code)
            self._ended(int(position))
        return self.returncode

    def _ended(self, position: int) -> None:
        worked, self.worked = self.worked, _nothing
        worked(position)

    def _awaited(self, timeout: float | None) -> int:
        begun = time.perf_counter()
        while (code := self._told()) is None:
            if timeout is not None and time.perf_counter() - begun > timeout:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(_PAUSE_S)
        return code


def _nothing(_: int) -> None:
    """What a program leaves that the main thread started is seen by all."""


def sharing(
    mediation: Mediation, of_threads: ProgramsOfThreads, original: Callable[..., None]
) -> Callable[..., None]:
    """For `subprocess.Popen.__init__`, called after what the script wrote is there."""
    numbers = itertools.count()

    @functools.wraps(original)
    def initialize(program: Any, args: Any, *rest: Any, **options: Any) -> None:
        mediation.before_child()
        in_step = called_by_script() and mediation.governs()
        in_thread = not in_step and called_by_script(or_by=STARTERS) and of_threads.called()
        if not (in_step or in_thread) or len(rest) > 2:  # stdin is the fourth
            return original(program, args, *rest, **options)
        if subprocess.PIPE in (options.get("stdout"), options.get("stderr")):
            name = args if isinstance(args, (str, bytes, os.PathLike)) else next(iter(args), "")
            name = os.path.basename(os.fsdecode(name).split(" ")[0])
            mediation.note(
                f"{name!r} was started by every rank, because the script reads what it prints while it runs; "
                f"subprocess.run starts a program once"
            )
            return original(program, args, *rest, **options)

        def start() -> int:
            original(program, args, *rest, **options)
            return program.pid

        if in_step:
            key, worked = f"program {next(numbers)}", _nothing
            pid = mediation.meet("subprocess.Popen", str(args), start).value
        elif of_threads.is_each_ranks_own(args, options):
            return original(program, args, *rest, **options)
        else:
            key = of_threads.key("subprocess.Popen", args, options)
            worked = of_threads.worked_on(named_paths(args, options))
            pid = of_threads.outcome(key, start, _nothing)
        if not mediation.is_main:
            _stand_in(program, args, pid, options)
        _become(program, mediation, f"end of {key}", worked)

    return initialize


def _stand_in(program: Any, args: Any, pid: int, options: dict[str, Any]) -> None:
    """Fill in what the script may look at; there is no process to be found."""
    program.args, program.pid, program.returncode = args, pid, None
    program.stdin = program.stdout = program.stderr = None
    if options.get("stdin") == subprocess.PIPE:
        text = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
        program.stdin = open(os.devnull, "w" if text else "wb")  # noqa: SIM115 - the script closes it


def _become(program: Any, mediation: Mediation, key: str, worked: Callable[[int], None]) -> None:
    plain = type(program)
    program.mediation, program.plain, program.key, program.worked = mediation, plain, key, worked
    members = {name: vars(_Program)[name] for name in vars(_Program) if callable(vars(_Program)[name])}
    program.__class__ = type(plain.__name__, (plain,), {**members, "__module__": plain.__module__})
