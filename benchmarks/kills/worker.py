"""Worker without state: restarted, it asks servers for its last change."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kills.changes import ELEMENTS, Array, change, changes
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.wire import Opcode

__all__ = ["CONFIG_KEY", "WorkerConfig", "main", "read_progress"]

CONFIG_KEY = "RONDE_KILLS_WORKER"

_PROGRESS = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig:
    """Settings of one worker.

    Attributes:
        endpoints, token, worker, workers, incarnation: as `Client` has them, the token in hexadecimal digits.
        steps: number of steps of the training.
        progress: file that says how many changes all servers have made.
    """

    endpoints: list[str]
    token: str
    worker: int
    workers: int
    incarnation: int
    steps: int
    progress: str


def read_progress(path: Path) -> int:
    """Return the number of changes that all servers have confirmed."""
    try:
        return _PROGRESS.unpack(path.read_bytes())[0]
    except (OSError, struct.error):
        return 0


def main() -> None:
    """Train to the end."""
    torch.set_num_threads(1)
    config = WorkerConfig(**json.loads(os.environ[CONFIG_KEY]))
    client = Client(
        config.endpoints,
        bytes.fromhex(config.token),
        worker=config.worker,
        workers=config.workers,
        incarnation=config.incarnation,
        timeout=120.0,
    )
    progress = os.open(config.progress, os.O_WRONLY | os.O_CREAT, 0o600)
    done = client.sequences
    for number in range(min(done) + 1, changes(config.steps) + 1):
        # One server may have made a change that the other has not: a worker was killed between the two.
        behind = [server for server in range(client.servers) if done[server] < number]
        sent = [_send(client, server, number) for server in behind]
        client.wait([request for request, _ in sent])
        for _, rooms in sent:
            for room in rooms:
                client.give_back(room)
        os.pwrite(progress, _PROGRESS.pack(number), 0)
    client.close()


def _send(client: Client, server: int, number: int) -> tuple[PendingRequest, list[Array]]:
    """Request a change, and return the memory that its answer frees."""

    def read(operation: Opcode, meta: dict[str, Any], arrays: list[Array]) -> Array:
        request = client.send(server, operation, meta, arrays, clock=number - 1)
        return client.wait([request])[0].arrays[0]

    asked = change(number, server=server, servers=client.servers, worker=client.worker, read=read)
    rooms: list[Array] = []
    arrays = asked.arrays
    meta = asked.meta
    if asked.operation is Opcode.ADD_GRADIENTS:
        rooms.append(client.room(arrays[0].nbytes))
        shared = rooms[0].view(np.float32)
        shared[:] = arrays[0]
        arrays = [shared]
    elif asked.operation is Opcode.STEP:
        rooms.append(client.room(4 * ELEMENTS))
        meta = meta | client.into(*rooms)
    return client.send(server, asked.operation, meta, arrays, clock=number, changes=True), rooms


if __name__ == "__main__":
    main()
