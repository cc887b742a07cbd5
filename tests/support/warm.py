"""A host that imports torch once and forks the processes of recorded runs.

This saves seconds for each. The host is `python -m support.warm`, driven by lines of JSON on its
standard input. It only imports and forks; it computes nothing itself, so it has no threads when it forks.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ronde.launch.linux_process import bind_to_parent, load_prctl
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.rank_environment import rank_environment
from ronde.launch.run_spec import RunSpec
from ronde.launch.server_config import SERVER_KEY, ServerConfig, local_endpoint, rule_of_servers
from ronde.plan import Plan
from ronde.runtime.ending import exit_code
from ronde.verify.runs import Start, plain_arguments

__all__ = ["TOO_LONG", "WarmHost"]

_PRELOADED = (
    "ronde.runtime.worker",
    "ronde.runtime.session",
    "ronde.verify.recorder",
    "ronde.verify.plain",
    "support.faults",
    "torch._dynamo",
    "torch._subclasses",
    "sklearn.datasets",
)
# How long the peers of a process that failed may take to end by themselves.
_GRACE = 3.0
# The exit code of `timeout`.
TOO_LONG = 124


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _ForkRequest:
    """One process to fork: the function `module:name`, its arguments, and its surroundings.

    Attributes:
        serves: whether it runs until the others are gone, and is ended then.
    """

    entry: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    stdout: str
    stderr: str
    serves: bool = False


class WarmHost:
    """Starter of recorded runs by forking; a context manager, one run at a time.

    Args:
        seconds: time after which a run's processes are killed, with `TOO_LONG` as its exit code; None: never.
    """

    def __init__(self, *, seconds: float | None = None) -> None:
        self._seconds = seconds
        paths = [os.path.abspath(each) for each in sys.path if each]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "support.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> WarmHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=30)
        self._server.stdout.close()

    def start(self, start: Start) -> int:
        """Run all processes of `start`; return the first nonzero exit code, or 0.

        Raises:
            ValueError: more than one thread per process was asked for, which only a new process can have.
        """
        if start.job.threads != 1:
            raise ValueError(f"a warm host runs one thread per process, not {start.job.threads}; use spawn")
        processes = _plain(start) if start.ranks is None else _ranks(start, start.ranks)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {"seconds": self._seconds, "processes": [dataclasses.asdict(each) for each in processes]}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError(
                f"the warm host ended with exit code {self._server.wait()}; its error is on stderr"
            )
        return json.loads(answer)


def _plain(start: Start) -> list[_ForkRequest]:
    return [
        _ForkRequest(
            entry="ronde.verify.plain:main",
            arguments=tuple(plain_arguments(start.job)),
            environment=dict(start.environment),
            directory=str(start.directory),
            stdout=str(start.place / "stdout"),
            stderr=str(start.place / "stderr"),
        )
    ]


def _ranks(start: Start, ranks: int) -> list[_ForkRequest]:
    run_dir = start.place / "run"
    run_dir.mkdir()
    servers = _server_configs(start, ranks)
    processes = [_server(start, config, run_dir / f"server-{config.index}.log") for config in servers]
    for rank in range(ranks):
        config = RankConfig(
            run=RunSpec(
                script=start.job.script,
                arguments=start.job.arguments,
                module=start.job.module,
                plan=start.job.plan,
                seed=start.job.seed,
                extensions=start.extensions,
                servers=tuple(config.endpoint for config in servers),
                server_token=servers[0].token if servers else "",
            ),
            place=RankPlace(
                rank=rank,
                world_size=ranks,
                local_rank=rank,
                local_world_size=ranks,
                run_dir=str(run_dir),
                store=f"file://{run_dir}/store",
            ),
        )
        log = run_dir / f"rank-{rank}.log"
        processes.append(
            _ForkRequest(
                entry="ronde.runtime.worker:main",
                arguments=(),
                environment=rank_environment(
                    start.environment, config, run_id="warm", threads=1, device=None
                ),
                directory=str(start.directory),
                stdout=str(log if rank else start.place / "stdout"),
                stderr=str(log if rank else start.place / "stderr"),
            )
        )
    return processes


def _server_configs(start: Start, ranks: int) -> list[ServerConfig]:
    plan = Plan.parse(start.job.plan)
    run_id, token = os.urandom(8).hex(), os.urandom(16).hex()
    return [
        ServerConfig(
            index=index,
            servers=plan.state.server_count,
            endpoint=local_endpoint(run_id, index),
            token=token,
            workers=ranks,
            update=rule_of_servers(plan),
            staleness=plan.update.staleness or 0,
        )
        for index in range(plan.state.server_count)
    ]


def _server(start: Start, config: ServerConfig, log: Path) -> _ForkRequest:
    return _ForkRequest(
        entry="ronde.server.process:main",
        arguments=(),
        environment={**start.environment, SERVER_KEY: config.to_json()},
        directory=str(start.directory),
        stdout=str(log),
        stderr=str(log),
        serves=True,
    )


def serve() -> None:
    """Serve: for each line, fork its processes, wait, and answer the exit code."""
    for name in _PRELOADED:
        importlib.import_module(name)
    # Imported modules are never garbage: collecting them in every child would copy their memory.
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        order = json.loads(line)
        processes = [_ForkRequest(**fields) for fields in order["processes"]]
        answers.write(f"{_run(processes, order['seconds'])}\n")
        answers.flush()


def _run(processes: list[_ForkRequest], seconds: float | None) -> int:
    serving = {_fork(process) for process in processes if process.serves}
    running = {_fork(process) for process in processes if not process.serves}
    failed = _failure_of(running, serving, time.monotonic() + (math.inf if seconds is None else seconds))
    for each in serving:
        os.kill(each, signal.SIGTERM)
    for each in serving:
        os.waitpid(each, 0)
    return failed


def _failure_of(running: set[int], serving: set[int], ended_by: float) -> int:
    """Return the first nonzero exit code; 0 when all but servers have ended."""
    failed = 0
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running or pid in serving:
            running.discard(pid)
            serving.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not failed:
                failed = code if code > 0 else 128 - code
                ended_by = time.monotonic() + _GRACE
        elif not pid:
            time.sleep(0.005)
        if time.monotonic() > ended_by:
            failed = failed or TOO_LONG
            for each in running:
                os.kill(each, signal.SIGKILL)
    return failed


def _fork(process: _ForkRequest) -> int:
    host = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    if process.serves:
        bind_to_parent(load_prctl(), host)
    code = 1
    try:
        code = _execute(process)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _execute(process: _ForkRequest) -> int:
    """Become the process in the child, run it, and end like an interpreter."""
    _redirect("/dev/null", os.O_RDONLY, 0)
    _redirect(process.stdout, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 1)
    _redirect(process.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 2)
    os.chdir(process.directory)
    os.environ.clear()
    os.environ.update(process.environment)
    module, _, name = process.entry.partition(":")
    entry: Any = getattr(importlib.import_module(module), name)
    code = 0
    try:
        entry(list(process.arguments)) if process.arguments else entry()
    except SystemExit as end:
        code = exit_code(end)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    # As at the interpreter's end: files that the script left open are closed, and so written.
    main = vars(sys.modules["__main__"])
    if main is not globals():
        main.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _redirect(path: str, flags: int, descriptor: int) -> None:
    opened = os.open(path, flags, 0o644)
    os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__":
    serve()
