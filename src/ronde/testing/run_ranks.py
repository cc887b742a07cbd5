"""Runs a function on N ranks that share a process group, in processes that are kept from test to test."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from ronde.comm.process_group import Comm, join

__all__ = ["RankPool", "run_ranks"]


class RankPool:
    """Rank processes of one world size that stay; use as a context manager.

    Args:
        ranks: how many.
        timeout: seconds that a rank waits for its peers in a collective, and the caller for a result.
    """

    def __init__(self, ranks: int, *, timeout: float = 60) -> None:
        # Spawned, not forked: the parent may have run backward passes, after which a fork cannot.
        context = multiprocessing.get_context("spawn")
        self._timeout = timeout
        self._place = tempfile.TemporaryDirectory(prefix="ronde-ranks-")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(ranks):
            mine, its = context.Pipe()
            process = context.Process(
                target=_serve, args=(its, self._place.name, rank, ranks, timeout), daemon=True
            )
            process.start()
            its.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call `function(comm, *arguments)` on every rank; its results in rank order.

        Args:
            function: one that a new process can import by name, with a `Comm` as its first parameter.

        Raises:
            AssertionError: when a rank raised (with its traceback) or died.
        """
        for pipe in self._pipes:
            pipe.send((function, arguments))
        results: list[Any] = []
        failures: list[str] = []
        for rank, pipe in enumerate(self._pipes):
            try:
                answered = pipe.poll(self._timeout)
                failed, value = pipe.recv() if answered else (True, f"no result within {self._timeout} s\n")
            except EOFError:
                failed, value = True, "the process died\n"
            if failed:
                failures.append(f"rank {rank}: {value}")
            results.append(value)
        if failures:
            raise AssertionError("\n".join(failures))
        return results

    def close(self) -> None:
        """End the ranks."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._place.cleanup()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_ranks(function: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """Call `function(comm, *arguments)` once on `ranks` new ranks; see `RankPool.run`."""
    with RankPool(ranks) as pool:
        return pool.run(function, *arguments)


def _serve(pipe: Connection, place: str, rank: int, ranks: int, timeout: float) -> None:
    import torch

    torch.set_num_threads(1)
    comm = join(
        f"file://{Path(place) / 'store'}",
        name="testing",
        rank=rank,
        world_size=ranks,
        device="cpu",
        timeout=timedelta(seconds=timeout),
        host="127.0.0.1",
    )
    try:
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                return
            pipe.send(_answer(function, comm, arguments))
    finally:
        comm.close()


def _answer(function: Callable[..., Any], comm: Comm, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return False, function(comm, *arguments)
    except BaseException:
        return True, traceback.format_exc()
