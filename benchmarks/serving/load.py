"""Requests at a fixed rate, whether earlier ones are answered or not: `python -m benchmarks.serving.load`.

Each connection has a timetable. The time of a request is taken from when it was due, not from when it could
be sent: a server that stalls is charged for all who wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, sleep, time
from typing import Any

__all__ = ["Load", "Seen", "main", "make"]

_CONNECTIONS = 8
_REQUESTS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """Requests at a fixed rate.

    Attributes:
        port: the port of HTTP, on this host.
        endpoint: the endpoint of the binary protocol, with the token of the environment; "" asks by HTTP.
        table: the name of the table.
        rate: requests a second, over all connections.
        seconds: the length of the load.
        ids: ids of a request, drawn from 0 to `below`.
        below: ids in the table.
    """

    port: int
    table: str
    rate: float
    seconds: float
    ids: int = 100
    below: int = 1_000_000
    endpoint: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Answers to a load.

    Attributes:
        milliseconds: time of each request.
        first: time of the first answer of each version, in seconds since 1970.
        failed: the number of refused requests.
    """

    milliseconds: list[float]
    first: dict[int, float]
    failed: int


def make(load: Load) -> Seen:
    """Send all requests, and wait for the answers."""
    seen = Seen(milliseconds=[], first={}, failed=0)
    failed: list[int] = []
    begin = perf_counter() + 0.2
    threads = [
        threading.Thread(target=_ask, args=(load, number, begin, seen, failed))
        for number in range(_CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dataclasses.replace(seen, failed=len(failed))


def _ask(load: Load, number: int, begin: float, seen: Seen, failed: list[int]) -> None:
    draw = random.Random(number)
    asked = [[draw.randrange(load.below) for _ in range(load.ids)] for _ in range(_REQUESTS)]
    every = _CONNECTIONS / load.rate
    with (_binary if load.endpoint else _http)(load, asked) as ask:
        for turn in range(int(load.seconds / every)):
            due = begin + turn * every + number * every / _CONNECTIONS
            wait = due - perf_counter()
            if wait > 0:
                sleep(wait)
            answer = ask(turn % _REQUESTS)
            done = perf_counter()
            version = None if answer is None else _version(answer)
            if version is None:
                failed.append(1)
                continue
            seen.milliseconds.append((done - due) * 1e3)
            if version not in seen.first:
                seen.first[version] = time()


@contextlib.contextmanager
def _http(load: Load, asked: Sequence[list[int]]) -> Iterator[Callable[[int], Any]]:
    """Yield a function that sends a numbered request; None is a refusal."""
    requests = [_request(load, ids) for ids in asked]
    with socket.create_connection(("127.0.0.1", load.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(number: int) -> bytes | None:
            connection.sendall(requests[number])
            answer = _answer(connection)
            return answer if answer.startswith(b"HTTP/1.1 200") else None

        yield ask


@contextlib.contextmanager
def _binary(load: Load, asked: Sequence[list[int]]) -> Iterator[Callable[[int], Any]]:
    """Yield a function like that of `_http`."""
    import numpy as np

    from ronde.errors import RondeError
    from ronde.server.serving.client import ReplicaClient

    arrays = [np.array(ids) for ids in asked]
    with ReplicaClient(load.endpoint) as client:

        def ask(number: int) -> Any:
            try:
                return client.look_up(load.table, arrays[number])
            except RondeError:
                return None

        yield ask


def _version(answer: Any) -> int:
    """Return the version of an answer."""
    if not isinstance(answer, bytes):
        return answer.version
    body = answer.find(b'{"version":') + len(b'{"version":')
    return int(answer[body : answer.find(b",", body)])


def _request(load: Load, ids: list[int]) -> bytes:
    body = json.dumps({"table": load.table, "ids": ids}).encode()
    head = f"POST /v1/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _answer(connection: socket.socket) -> bytes:
    answer = connection.recv(1 << 18)
    end = answer.find(b"\r\n\r\n") + 4
    length = int(answer[answer.lower().find(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
    while len(answer) < end + length:
        answer += connection.recv(1 << 18)
    return answer


def main() -> None:
    """Take a `Load` as JSON from the command line, and print `Seen`."""
    seen = make(Load(**json.loads(sys.argv[1])))
    sys.stdout.write(json.dumps(dataclasses.asdict(seen)))


if __name__ == "__main__":
    main()
