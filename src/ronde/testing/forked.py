"""`ronde ...` without the seconds in which every process imports torch: launcher and ranks are forks.

A fork server has imported torch once. The launcher is forked from it, and its ranks from the launcher, where
the real command starts interpreters. Signals, exit codes, output and process groups are those of it.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["ForkedCommand", "run"]

_WORKER = "ronde.runtime.worker"
_SERVER = "ronde.server.process"


class ForkedCommand:
    """A running `ronde ...`, used as a `subprocess.Popen` with pipes and text.

    Args:
        arguments: behind `ronde`.
        directory: where it runs.
        environment: its variables; None: those of this process. What torch reads when it is imported was
            read by the fork server.
    """

    def __init__(
        self, arguments: Sequence[str], *, directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ronde.testing.preload"])
        folder = tempfile.mkdtemp(prefix="ronde-forked-")
        weakref.finalize(self, shutil.rmtree, folder)
        self._streams = [Path(folder, name) for name in ("stdout", "stderr")]
        environment = dict(os.environ if environment is None else environment)
        streams = [str(each) for each in self._streams]
        self._process = context.Process(
            target=_launch, args=(tuple(arguments), str(directory), environment, streams), daemon=False
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number if one ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the launcher, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL; the ranks die with their launcher."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("ronde", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it wrote to stdout and stderr.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        self.wait(timeout)
        out, err = (path.read_text() for path in self._streams)
        return out, err


def run(
    arguments: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 90.0,
) -> subprocess.CompletedProcess[str]:
    """`ronde ...` to its end, as `subprocess.run` with captured text gives it.

    Raises:
        subprocess.TimeoutExpired: it runs longer than so many seconds.
    """
    command = ForkedCommand(arguments, directory=directory, environment=environment)
    try:
        out, err = command.communicate(timeout)
    finally:
        command.kill()
    assert command.returncode is not None
    return subprocess.CompletedProcess(["ronde", *arguments], command.returncode, out, err)


def _launch(
    arguments: tuple[str, ...], directory: str, environment: dict[str, str], streams: list[str]
) -> None:
    """In the fork: the launcher."""
    from ronde.launch import rank_process, servers

    gc.freeze()
    for path, descriptor in ((os.devnull, 0), (streams[0], 1), (streams[1], 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(directory)
    forking = SimpleNamespace(
        Popen=_Forked,
        DEVNULL=subprocess.DEVNULL,
        SubprocessError=subprocess.SubprocessError,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    rank_process.subprocess = forking  # pyright: ignore[reportAttributeAccessIssue]
    servers.subprocess = forking  # pyright: ignore[reportAttributeAccessIssue]
    sys.argv = ["ronde", *arguments]

    _become(lambda: runpy.run_module("ronde", run_name="__main__"), environment)


class _Forked:
    """A rank or a parameter server as a fork of its launcher; what that asks of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int | None,
        stdout: Any,
        stderr: Any,
        preexec_fn: Callable[[], None],
    ) -> None:
        program = {_WORKER: _work, _SERVER: _serve}.get(command[-1])
        if program is None:
            raise ValueError(f"only ranks and servers can be forked, not {command}")
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            for given, descriptor in ((stdin, 0), (stdout, 1), (stderr, 2)):
                if given == subprocess.DEVNULL:
                    given = os.open(os.devnull, os.O_RDWR)
                if given is not None:
                    os.dup2(given if isinstance(given, int) else given.fileno(), descriptor)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # nothing that lives on closes one of these again
            preexec_fn()
            _become(program, env)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _serve() -> None:
    from ronde.server.process import main

    main()


def _work() -> None:
    from ronde.runtime.worker import main

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the first lines of the worker do
    main()


def _become(program: Callable[[], object], environment: Mapping[str, str]) -> None:
    """Be an interpreter that was just started with this program, to its end; never returns."""
    code: Any = 1
    try:
        _begin(environment)
        code = _ended(program)
        _end()
    except BaseException:
        traceback.print_exc()
    finally:
        if code is None:  # as an interpreter that is interrupted ends
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(1 if code is None else code)


def _ended(program: Callable[[], object]) -> int | None:
    """The exit code of a program; None when it was interrupted."""
    try:
        program()
    except SystemExit as end:
        from ronde.runtime.ending import exit_code

        return exit_code(end)
    except KeyboardInterrupt:
        return None
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _begin(environment: Mapping[str, str]) -> None:
    """Leave behind what is the forking process's own: handlers, variables, its place in `multiprocessing`."""
    from ronde.testing.preload import MAIN_PROCESS

    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):  # as `exec` leaves them: ignored ones stay ignored
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method(None, force=True)  # pyright: ignore[reportArgumentType]
    # The server's own, whose descriptors are closed here.
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    forkserver._forkserver.__init__()
    own: Any = sys.modules["multiprocessing.process"]
    own._current_process, own._parent_process, own._children = MAIN_PROCESS, None, set()
    os.environ.clear()
    os.environ.update(environment)


def _end() -> None:
    """What the interpreter does at its end: wait for threads, call what is registered, close what is open."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    main = vars(sys.modules["__main__"])
    if main is not globals():
        main.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
