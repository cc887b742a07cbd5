"""Persistent rank processes that run functions of test modules together.

One server process imports torch once and forks the ranks; a rank then keeps its process groups, so that a
call costs milliseconds.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import hashlib
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

__all__ = ["Rank", "RankError", "RankPool", "run_ranks"]

# Seconds that other ranks may continue after one has failed; mostly they wait for it in a collective.
_GRACE = 1.5
_GROUPS = ("boundary", "reducer")
_COLLECTIVE_TIMEOUT = timedelta(seconds=120)
# Counter of this process's sessions, equal on all ranks.
_sessions = itertools.count()


class RankError(AssertionError):
    """Raised when a function failed on some rank; the message has its traceback."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """Argument of functions in a pool: rank and groups.

    Attributes:
        rank: position of this rank.
        world_size: number of the ranks.
        groups: a `Comm` for "boundary" and one for "reducer".
        directory: a folder of the pool's own, the same on every rank.
    """

    rank: int
    world_size: int
    groups: dict[str, Any]
    directory: str

    @contextmanager
    def session(self, plan: str = "ddp", seed: int = 0) -> Iterator[Any]:
        """Install the boundary around the block, as around a script; files are not mediated.

        Yields:
            the `Session`: its `context`, `reducer`, `patches`.
        """
        from ronde.launch.rank_config import RankConfig, RankPlace
        from ronde.launch.run_spec import RunSpec
        from ronde.plan import Plan
        from ronde.process.seeds import seed_all

        parsed = Plan.parse(plan)
        servers = _server_configs(parsed, self)
        config = RankConfig(
            run=RunSpec(
                script="",
                plan=plan,
                seed=seed,
                servers=tuple(each.endpoint for each in servers),
                server_token=servers[0].token if servers else "",
            ),
            place=RankPlace(
                rank=self.rank,
                world_size=self.world_size,
                local_rank=self.rank,
                local_world_size=self.world_size,
                run_dir=self.directory,
                store="file://" + os.path.join(self.directory, "store"),
            ),
        )
        seed_all(seed)
        with _running(servers if self.rank == 0 else []):
            session = _pooled_session(config, parsed, self.groups)
            try:
                session.install_boundary()
                yield session
                if session.client is not None:
                    session.client.finish()
                    self.groups["boundary"].barrier()  # no rank asks a server after this
            finally:
                session.uninstall_boundary()
                if session.client is not None:
                    session.client.close()
                session.groups.leave_subgroups()


def _server_configs(plan: Any, rank: Rank) -> list[Any]:
    """Make the configurations of a plan's parameter servers, equal on every rank."""
    from ronde.launch.server_config import ServerConfig, local_endpoint, rule_of_servers

    name = f"{Path(rank.directory).name}-{next(_sessions)}"
    return [
        ServerConfig(
            index=index,
            servers=plan.state.server_count,
            endpoint=local_endpoint(name, index),
            token=hashlib.md5(name.encode()).hexdigest(),
            workers=rank.world_size,
            update=rule_of_servers(plan),
            staleness=plan.update.staleness or 0,
        )
        for index in range(plan.state.server_count)
    ]


@contextmanager
def _running(servers: list[Any]) -> Iterator[None]:
    """Run these servers inside the block."""
    from ronde.launch.linux_process import bind_to_parent, load_prctl
    from ronde.launch.server_config import SERVER_KEY

    library, parent = load_prctl(), os.getpid()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "ronde.server.process"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), SERVER_KEY: config.to_json()},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: bind_to_parent(library, parent),  # noqa: PLW1509 - it waits for no thread
        )
        for config in servers
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _pooled_session(config: Any, plan: Any, pooled: dict[str, Any]) -> Any:
    """Return a session on groups that exist already."""
    from ronde.runtime.groups import join_some
    from ronde.runtime.session import Session
    from ronde.runtime.session_groups import SessionGroups

    def join(name: str, algorithm: Any, members: Any) -> Any:
        if members is None:
            return pooled[name]
        # Of this session alone: values that another has written to the store stay there.
        return join_some(config, f"{next(_sessions)}/{name}", "127.0.0.1", algorithm, members)

    return Session(config, plan, groups=SessionGroups(config, plan, join))


class RankPool:
    """Rank processes that run one function after another.

    Args:
        world_size: number of ranks.
        timeout: seconds that one call may take; then its processes are ended; the next call starts others.
    """

    def __init__(self, world_size: int, *, timeout: float = 60.0) -> None:
        self.world_size = world_size
        self.timeout = timeout
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `fn(rank, *args)` on every rank; the results in rank order.

        Args:
            fn: a function of an importable module; `rank` is this process's `Rank`.

        Raises:
            RankError: raised with the traceback, if the function raised on some rank.
            TimeoutError: raised with every rank's stack, if it did not return.
        """
        self.start()
        source = getattr(sys.modules.get(fn.__module__), "__file__", None)
        task = (list(sys.path), (fn.__module__, source), pickle.dumps((fn, args)))
        for connection in self._connections:
            connection.send(task)
        return self._collect(getattr(fn, "__name__", str(fn)))

    def start(self) -> None:
        """Start the processes where they do not run; `run` does so too."""
        if self._processes:
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ronde.testing.preload"])
        self._directory = tempfile.TemporaryDirectory(prefix="ronde-pool-")
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            place = (rank, self.world_size, self._directory.name)
            process = context.Process(target=_serve, args=(theirs, *place), daemon=False)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def _collect(self, name: str) -> list[Any]:
        deadline = time.monotonic() + self.timeout
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        waiting = dict(enumerate(self._connections))
        while waiting:
            ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                try:
                    succeeded, value = waiting.pop(rank).recv()
                except EOFError:
                    succeeded, value = False, "the process died"
                (results if succeeded else failures)[rank] = value
                if not succeeded:
                    deadline = min(deadline, time.monotonic() + _GRACE)
        stacks = self._stacks(waiting) if waiting else ""
        if failures or waiting:
            self.close()
        if failures:
            told = "\n".join(
                f"rank {rank} of {self.world_size}:\n{text}" for rank, text in sorted(failures.items())
            )
            raise RankError(f"{name} failed\n{told}{stacks}")
        if waiting:
            raise TimeoutError(
                f"{name}: ranks {sorted(waiting)} did not come back in {self.timeout} s{stacks}"
            )
        return [results[rank] for rank in range(self.world_size)]

    def _stacks(self, waiting: dict[int, Any]) -> str:
        """Return the stacks of ranks that did not answer."""
        for rank in waiting:
            if self._processes[rank].is_alive():
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        time.sleep(0.3)
        assert self._directory is not None
        told = [(rank, Path(self._directory.name, f"stack-{rank}")) for rank in waiting]
        return "".join(f"\nrank {rank} was at:\n{path.read_text()}" for rank, path in told if path.exists())

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes, self._connections = [], []
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60.0) -> list[Any]:
    """Run `fn(rank, *args)` once on `world_size` fresh ranks; see `RankPool.run`."""
    pool = RankPool(world_size, timeout=timeout)
    try:
        return pool.run(fn, *args)
    finally:
        pool.close()


def _serve(connection: Connection, rank: int, world_size: int, directory: str) -> None:
    """Run functions from the pipe in a rank until it is closed."""
    import torch

    from ronde.comm.rendezvous import join
    from ronde.comm.topology import RankPosition

    torch.set_num_threads(1)
    # Start method of a loader's workers; a process of a fork server would ask for its own server.
    multiprocessing.set_start_method("fork", force=True)
    stacks = open(os.path.join(directory, f"stack-{rank}"), "w")  # noqa: SIM115 - open as long as the process
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    groups = {
        name: join(
            "file://" + os.path.join(directory, "store"),
            name=name,
            place=RankPosition(rank, world_size, rank, world_size),
            device="cpu",
            timeout=_COLLECTIVE_TIMEOUT,
            host="127.0.0.1",
        )
        for name in _GROUPS
    }
    place = Rank(rank=rank, world_size=world_size, groups=groups, directory=directory)
    while True:
        try:
            path, source, task = connection.recv()
        except EOFError:
            break
        sys.path[:] = path
        answer = _answer(place, source, task)
        try:
            connection.send(answer)
        except BrokenPipeError:
            break
    for group in groups.values():
        group.close()


def _provide(name: str, path: str | None) -> None:
    """Make a test module importable by the name that pytest gave it."""
    if path is None or name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _answer(place: Rank, source: tuple[str, str | None], task: bytes) -> tuple[bool, Any]:
    try:
        _provide(*source)
        fn, args = pickle.loads(task)
        result = fn(place, *args)
        pickle.dumps(result)
    except BaseException:
        return False, traceback.format_exc()
    return True, result
