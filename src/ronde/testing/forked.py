"""`ronde ...` in forks that share one import of torch.

A fork server has imported torch once, which takes seconds in every new process. The launcher is forked from
it, and its ranks from the launcher, where the real command starts interpreters. Signals, exit codes, output
and process groups equal those of the real command. On several hosts each agent is a fork as well, on this
host: `--ssh-command` only answers whether a host is up.
"""

from __future__ import annotations

import atexit
import gc
import math
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


class ForkedCommand:
    """A running `ronde ...`, used as a `subprocess.Popen` with pipes and text.

    Args:
        arguments: words after `ronde`.
        directory: working directory.
        environment: its variables; None: those of this process. Variables that torch reads on import were
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
        """Return the exit code, or minus the ending signal; None while it runs."""
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
            subprocess.TimeoutExpired: raised if it still runs after `timeout` seconds.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("ronde", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; return its output on stdout and stderr.

        Raises:
            subprocess.TimeoutExpired: raised if it still runs after `timeout` seconds.
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
    """Run `ronde ...` to its end, with the result of `subprocess.run`.

    Its output is captured as text.

    Raises:
        subprocess.TimeoutExpired: raised if it runs longer than `timeout` seconds.
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
    """Become the launcher, in the fork."""
    from ronde.launch import agent_link, rank_process, servers, store_process

    gc.freeze()
    for path, descriptor in ((os.devnull, 0), (streams[0], 1), (streams[1], 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(directory)
    forking = SimpleNamespace(
        Popen=_Forked,
        PIPE=subprocess.PIPE,
        DEVNULL=subprocess.DEVNULL,
        SubprocessError=subprocess.SubprocessError,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    starters: Any = (agent_link, rank_process, servers, store_process)
    for starter in starters:
        starter.subprocess = forking
    sys.argv = ["ronde", *arguments]

    _become(lambda: runpy.run_module("ronde", run_name="__main__"), environment)


class _Forked:
    """A forked child with the part of the `Popen` interface that launchers use.

    It is a rank, a parameter server, the agent of a host, or the store where ranks of hosts meet.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | None,
        stdout: Any,
        stderr: Any,
        env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], None] = lambda: None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        program = next((each for name, each in _PROGRAMS.items() if name in " ".join(command)), None)
        if program is None:
            raise ValueError(f"only processes of ronde can be forked, not {command}")
        self.returncode: int | None = None
        self._asking = threading.Lock()
        pipes = [os.pipe() if given == subprocess.PIPE else None for given in (stdin, stdout, stderr)]
        theirs = [pipe and pipe[number > 0] for number, pipe in enumerate(pipes)]
        self.stdin = pipes[0] and os.fdopen(pipes[0][1], "wb", buffering=0)
        self.stdout, self.stderr = (pipe and os.fdopen(pipe[0], "rb") for pipe in pipes[1:])
        self.pid = os.fork()
        if not self.pid:
            for number, given in enumerate((stdin, stdout, stderr)):
                descriptor = _number(given) if theirs[number] is None else theirs[number]
                if descriptor is not None:
                    os.dup2(descriptor, number)
            _close_all_but(pass_fds)
            gc.freeze()  # garbage collection of an earlier attempt must not close these descriptors
            if start_new_session:
                os.setsid()
            preexec_fn()
            sys.argv = ["-c", *command[3:]]  # of the store; other programs read their environment
            _become(program, os.environ.copy() if env is None else env)
        for descriptor in theirs:
            if descriptor is not None:
                os.close(descriptor)

    def poll(self) -> int | None:
        with self._asking:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _number(given: Any) -> int | None:
    """Return the descriptor that `subprocess` would use for a stream."""
    if given == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR)
    return given if given is None or isinstance(given, int) else given.fileno()


def _close_all_but(kept: Sequence[int]) -> None:
    first = 3
    for number in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, number)
        first = number + 1


def _lead_a_host() -> None:
    from ronde.launch.agent import main

    main()


def _examine_a_host() -> None:
    from ronde.doctor.host_agent import main

    main()


def _hold_the_store() -> None:
    from ronde.runtime.store import main

    main()


def _serve() -> None:
    from ronde.server.process import main

    main()


def _work() -> None:
    from ronde.runtime.worker import main

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the worker's first lines do
    main()


def _work_for_another_library() -> None:
    from ronde.compat import worker

    module: Any = worker
    module.os = SimpleNamespace(**{**vars(os), "execvpe": _run})
    worker.main()


def _run(file: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become a command; `python script.py` of a rank runs in this process."""
    if file != sys.executable or not command[1].endswith(".py"):
        os.execvpe(file, list(command), environment)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.dirname(os.path.abspath(command[1])), *filter(None, paths)]
    sys.argv = list(command[1:])
    runpy.run_path(command[1], run_name="__main__")


#: Programs that may be forked, by a word of their command.
_PROGRAMS = {
    "ronde.compat.worker": _work_for_another_library,
    "ronde.runtime.worker": _work,
    "ronde.server.process": _serve,
    "ronde.launch.agent": _lead_a_host,
    "ronde.doctor.host_agent": _examine_a_host,
    "ronde.runtime.store": _hold_the_store,
}


def _become(program: Callable[[], object], environment: Mapping[str, str]) -> None:
    """Run this program like a new interpreter, to its end; never returns."""
    code: Any = 1
    try:
        _begin(environment)
        code = _ended(program)
        _end()
    except BaseException:
        traceback.print_exc()
    finally:
        if code is None:  # as an interrupted interpreter ends
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(1 if code is None else code)


def _ended(program: Callable[[], object]) -> int | None:
    """Run a program; return its exit code, or None if it was interrupted."""
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
    """Drop the forking process's own handlers, variables and `multiprocessing` state."""
    from ronde.testing.preload import MAIN_PROCESS

    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):  # as after `exec`: ignored signals stay ignored
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method(None, force=True)  # pyright: ignore[reportArgumentType]
    # The server's own; its descriptors are closed here.
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    forkserver._forkserver.__init__()
    own: Any = sys.modules["multiprocessing.process"]
    own._current_process, own._parent_process, own._children = MAIN_PROCESS, None, set()
    os.environ.clear()
    os.environ.update(environment)


def _end() -> None:
    """Run the interpreter's end: wait for threads, run exit handlers, close files."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    main = vars(sys.modules["__main__"])
    if main is not globals():
        main.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
