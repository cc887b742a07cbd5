"""Ranks of one contender, started once for all requests, asleep between them.

Contenders are measured in turn, so a rank that is not asked must not take time from those that are. It waits
for its next order on a socket, which costs nothing, and not in its library, which would spin.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ronde.bench.process_set import Process, end, start, tail, wait_all
from ronde.errors import BenchError, UsageError

__all__ = ["RankSet", "running"]

_LOOK_EVERY = 0.1
_START_TIMEOUT = 300.0
_TIMEOUT = 600.0
_GRACE = 5.0


class RankSet:
    """Ranks that have joined each other; made by `running`.

    Attributes:
        version: the version of their library.
    """

    def __init__(self, title: str, connections: Sequence[Connection], folder: Path) -> None:
        self.version = ""
        self._title = title
        self._connections = list(connections)
        self._folder = folder

    def ask(self, verb: str, *arguments: Any) -> list[Any]:
        """Request something of all ranks, and return their answers.

        Raises:
            BenchError: one failed, died or did not answer in time.
        """
        for connection in self._connections:
            with contextlib.suppress(BrokenPipeError):  # its end is detected below
                connection.send((verb, arguments))
        return self.answers(_TIMEOUT)

    def answers(self, timeout: float) -> list[Any]:
        """Return the answer of each rank.

        Raises:
            BenchError: one failed, died or did not answer in time.
        """
        found: dict[Connection, Any] = {}
        deadline = time.monotonic() + timeout
        while len(found) < len(self._connections):
            missing = [each for each in self._connections if each not in found]
            ready = wait(missing, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BenchError(
                    f"{self._title} did not answer within {timeout:.0f} s; {_last_words(self._folder)} [R852]"
                )
            for connection in missing:
                if connection in ready:
                    found[connection] = self._answer(connection)
        return list(found.values())

    def _answer(self, connection: Connection) -> Any:
        try:
            outcome, value = connection.recv()
        except (EOFError, ConnectionResetError):
            raise BenchError(f"a rank of {self._title} died: {_last_words(self._folder)} [R852]") from None
        if outcome == "failed":
            raise BenchError(f"{self._title} failed: {value}")
        return value


@contextlib.contextmanager
def running(
    title: str, command: Sequence[str], *, ranks: int, launcher: Sequence[str], environment: Mapping[str, str]
) -> Iterator[RankSet]:
    """Start the ranks of a contender, and end them.

    Args:
        title: the name of the contender, for messages.
        command: the command of one rank, to which options with its number and the socket are added.
        launcher: the command that starts all ranks, with its options; empty to start them one by one.

    Raises:
        BenchError: the ranks do not start.
        UsageError: the socket cannot be made.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ronde-bench-") as name,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        folder, path = Path(name), Path(name) / "socket"
        try:
            listener.bind(str(path))
        except OSError as error:
            raise UsageError(
                f"cannot open a socket in {folder} ({error}); set TMPDIR to a folder with a shorter "
                "name [R852]"
            ) from None
        listener.listen(ranks)
        listener.settimeout(_LOOK_EVERY)
        words = (*launcher, *command, "--socket", str(path), "--ranks", str(ranks))
        commands = [words] if launcher else [(*words, "--rank", str(rank)) for rank in range(ranks)]
        children = [
            start(Process(command=each, environment=environment), folder, place)
            for place, each in enumerate(commands)
        ]
        connections: list[Connection] = []
        try:
            deadline = time.monotonic() + _START_TIMEOUT
            while len(connections) < ranks:
                try:
                    link, _ = listener.accept()
                except TimeoutError:
                    _check_starting(title, children, deadline, folder)
                    continue
                link.setblocking(True)
                connections.append(Connection(link.detach()))
            found = RankSet(title, connections, folder)
            found.version = found.answers(_START_TIMEOUT)[0][1]
            yield found
        finally:
            for connection in connections:
                connection.close()  # on which ranks end by themselves
            wait_all(children, _GRACE)
            end(children)


def _check_starting(
    title: str, children: Sequence[subprocess.Popen[bytes]], deadline: float, folder: Path
) -> None:
    code = next((code for code in (child.poll() for child in children) if code is not None), None)
    if code is not None:
        raise BenchError(f"{title} did not start: exit code {code}: {_last_words(folder)} [R852]") from None
    if time.monotonic() > deadline:
        raise BenchError(
            f"{title} did not start within {_START_TIMEOUT:.0f} s: {_last_words(folder)} [R852]"
        ) from None


def _last_words(folder: Path) -> str:
    """Return the end of the longest stderr."""
    return tail(max(folder.glob("*.err"), key=lambda path: path.stat().st_size))
