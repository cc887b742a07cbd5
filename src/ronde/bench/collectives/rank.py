"""One rank of a contender: does what the bench asks by a socket, and sleeps until then.

Run as a module, with what `rank_set` gives it.
"""

from __future__ import annotations

import argparse
import importlib
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

from ronde.bench.collectives.contender import CONTENDERS
from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting, Way
from ronde.errors import PeerLost

__all__ = ["Serving", "main"]

_TIMEOUT = 300.0


class Serving:
    """What a rank can be asked for.

    Args:
        way: of the contender.
        ranks: how many there are.
    """

    def __init__(self, way: Way, ranks: int) -> None:
        self._way, self._ranks = way, ranks
        self._prepared: tuple[Operand, Call] | None = None

    def prepare(self, operation: str, elements: int) -> None:
        """Allocate for what is measured next, in place of what was before."""
        self._prepared = None
        self._prepared = self._way.prepare(operation, elements)

    def measure(self, calls: int) -> float:
        """Seconds that so many calls took one behind the other; the result of one more is checked.

        The root of a broadcast changes with every call, so that none can run ahead of who receives.

        Raises:
            BenchError: when that result is wrong.
        """
        assert self._prepared is not None
        operand, call = self._prepared
        operand.clear()
        self._way.barrier()
        begun = perf_counter()
        for turn in range(calls):
            call(turn)
        seconds = perf_counter() - begun
        last = self._ranks - 1
        self._way.barrier()
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
    options = parser.parse_args()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(options.socket))
        connection = Connection(link.detach())
    contender = CONTENDERS[options.contender]
    meeting = Meeting(
        rank=options.rank,
        ranks=options.ranks,
        folder=options.socket.parent,
        timeout=_TIMEOUT,
        algorithm=contender.algorithm,
    )
    try:
        module = importlib.import_module(contender.module)
        way: Way = module.join(meeting)
    except (Exception, PeerLost) as error:
        connection.send(("failed", _told(error)))
        raise
    connection.send(("done", (way.rank, way.version)))
    _serve(connection, Serving(way, options.ranks))
    way.close()


def _serve(connection: Connection, serving: Serving) -> None:
    while True:
        try:
            verb, arguments = connection.recv()
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            answer = ("done", getattr(serving, verb)(*arguments))
        except (Exception, PeerLost) as error:
            answer = ("failed", _told(error))
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
