"""A rank of a contender: does operations on request, and sleeps between them.

`rank_set` runs it as a module.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

from ronde.bench.collectives.backends import JOIN, Call, MeasuredBackend, Meeting
from ronde.bench.collectives.cases import CONTENDERS
from ronde.bench.collectives.operand import Operand
from ronde.errors import PeerLost

__all__ = ["Serving", "main"]

_TIMEOUT = 300.0


class Serving:
    """Requests to a rank.

    Args:
        backend: the contender's operations.
        ranks: the number of ranks.
    """

    def __init__(self, backend: MeasuredBackend, ranks: int) -> None:
        self._backend, self._ranks = backend, ranks
        self._prepared: tuple[Operand, Call] | None = None

    def prepare(self, operation: str, elements: int) -> None:
        """Allocate for the next operation, in place of the one before."""
        self._prepared = None
        self._prepared = self._backend.prepare(operation, elements)

    def measure(self, calls: int) -> float:
        """Return the seconds of `calls` calls in a row, and check one more call.

        The root of a broadcast changes with every call, so that no root can run ahead of its receivers.

        Raises:
            BenchError: the result is wrong.
        """
        assert self._prepared is not None
        operand, call = self._prepared
        operand.clear()
        self._backend.barrier()
        begun = perf_counter()
        for turn in range(calls):
            call(turn)
        seconds = perf_counter() - begun
        last = self._ranks - 1
        self._backend.barrier()
        operand.fill()
        call(last)
        operand.check(last)
        return seconds


def main() -> None:
    """Join the other ranks and serve until the socket is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--contender", required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rank", type=int)
    asked = parser.parse_args()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(asked.socket))
        connection = Connection(link.detach())
    meeting = Meeting(
        rank=asked.rank,
        ranks=asked.ranks,
        folder=asked.socket.parent,
        timeout=_TIMEOUT,
        algorithm=CONTENDERS[asked.contender].algorithm,
    )
    try:
        backend = JOIN[asked.contender](meeting)
    except (Exception, PeerLost) as error:
        connection.send(_failed(error))
        raise
    connection.send(("done", (backend.rank, backend.version)))
    _serve(connection, Serving(backend, asked.ranks))
    backend.close()


def _serve(connection: Connection, serving: Serving) -> None:
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            verb, arguments = connection.recv()
            try:
                answer = ("done", getattr(serving, verb)(*arguments))
            except (Exception, PeerLost) as error:
                answer = _failed(error)
            connection.send(answer)


def _failed(error: BaseException) -> tuple[str, str]:
    return "failed", f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
