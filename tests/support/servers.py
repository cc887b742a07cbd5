"""Parameter servers in threads of this process, for tests of their clients."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ronde.server.dense import DenseShard
from ronde.server.parameter_server import ParameterServer, Rule, WriteAheadLog
from ronde.server.shard import ServerShard
from ronde.server.sparse import SparseShard
from ronde.server.transport.client import Client
from ronde.server.transport.service import Service

__all__ = ["RunningServers", "serving"]

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunningServers:
    """Running servers.

    Attributes:
        endpoints: addresses of the servers.
        token: token of their run.
        servers: handlers of messages; tests may inspect their state.
        workers: number of workers.
    """

    endpoints: list[str]
    token: bytes
    servers: list[ParameterServer]
    workers: int

    def client(self, worker: int = 0, *, timeout: float = 20.0) -> Client:
        """Create a worker's connections."""
        return Client(self.endpoints, self.token, worker=worker, workers=self.workers, timeout=timeout)


@contextmanager
def serving(
    count: int = 1,
    *,
    workers: int = 1,
    rule: Rule = "sync",
    staleness: int = 0,
    journal: WriteAheadLog | None = None,
    tcp: bool = False,
) -> Iterator[RunningServers]:
    """Run `count` servers inside the block."""
    token = os.urandom(16)
    servers = [
        ParameterServer(
            ServerShard({"dense": DenseShard(), "sparse": SparseShard()}),
            journal,
            workers=workers,
            rule=rule,
            staleness=staleness,
            about={"server": index, "servers": count},
        )
        for index in range(count)
    ]
    name = f"ronde-test-{os.getpid()}-{next(_numbers)}"
    services = [
        Service("tcp://127.0.0.1:*" if tcp else f"ipc://@{name}-{index}", token, server)
        for index, server in enumerate(servers)
    ]
    threads = [threading.Thread(target=service.run) for service in services]
    for thread in threads:
        thread.start()
    try:
        yield RunningServers(
            endpoints=[service.endpoint for service in services],
            token=token,
            servers=servers,
            workers=workers,
        )
    finally:
        for service, thread in zip(services, threads, strict=True):
            service.stop()
            thread.join()
            service.close()
