"""Servers for tests: real processes, or threads, with clients of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ronde.launch.server_config import SERVER_KEY, ServerConfig
from ronde.server.dense import DenseShard
from ronde.server.parameter_server import ParameterServer, Rule
from ronde.server.shard import ServerShard
from ronde.server.transport.service import Service

TOKEN = "00112233445566778899aabbccddeeff"


@contextlib.contextmanager
def process(endpoint: str, **options: Any) -> Iterator[str]:
    """A server process; where it listens."""
    config = ServerConfig(
        **{"index": 0, "servers": 1, "workers": 1, **options}, endpoint=endpoint, token=TOKEN
    )
    environment = {**os.environ, SERVER_KEY: config.to_json()}
    server = subprocess.Popen(
        [sys.executable, "-m", "ronde.server.process"], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        said = server.stderr.readline()
        assert "listens at" in said, said
        yield said.split("listens at ")[1].split()[0]
        assert server.poll() is None, server.stderr.read()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        server.stderr.close()


@contextlib.contextmanager
def thread(workers: int = 1, rule: Rule = "sync", update: str | None = None) -> Iterator[str]:
    """A server in a thread; where it listens."""
    about: dict[str, Any] = {"update": update or rule}
    shard = ServerShard({"dense": DenseShard()})
    server = ParameterServer(shard, None, workers=workers, rule=rule, about=about)
    service = Service("tcp://127.0.0.1:*", bytes.fromhex(TOKEN), server)
    about["refused"] = service.refused
    running = threading.Thread(target=service.run)
    running.start()
    try:
        yield service.endpoint
    finally:
        service.stop()
        running.join()
        service.close()


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each gives, all in threads of their own; raises what one of them raised."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def do(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=do, args=(number,)) for number in range(len(works))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]
    return results
