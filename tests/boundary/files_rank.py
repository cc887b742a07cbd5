"""One rank of the file tests: runs every scenario with files mediated and writes what it saw as JSON.

    python files_rank.py RANK WORLD_SIZE FOLDER

The ranks share `FOLDER/work/SCENARIO` as working directory; rank r's answers go to `FOLDER/rank-r.json`.
"""

# ruff: noqa: T201

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroupGloo

from boundary.files_scenarios import SCENARIOS, Ranks, answer
from ronde.boundary.files import FileMediator, StoreMeeting
from ronde.errors import PeerLost

TIMEOUT = 20


class GlooComm:
    """The least communicator that mediation needs, over a private process group."""

    def __init__(self, rank: int, world_size: int, path: str) -> None:
        self.rank = rank
        self.store = torch.distributed.FileStore(path, world_size)
        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=TIMEOUT)
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self.group = ProcessGroupGloo(self.store, rank, world_size, options)

    def barrier(self) -> None:
        try:
            self.group.barrier().wait()
        except RuntimeError as failure:
            raise PeerLost(str(failure)) from failure

    def broadcast_object(self, obj: Any, source: int = 0) -> Any:
        try:
            return self._broadcast_object(obj, source)
        except RuntimeError as failure:
            raise PeerLost(str(failure)) from failure

    def _broadcast_object(self, obj: Any, source: int) -> Any:
        data = pickle.dumps(obj) if self.rank == source else b""
        length = torch.tensor([len(data)])
        self.group.broadcast(length, source).wait()
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == source:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.group.broadcast(buffer, source).wait()
        return pickle.loads(buffer.numpy().tobytes())


class RealRanks(Ranks):
    """What a scenario can ask about, and do to, the ranks it runs on."""

    def __init__(self, comm: GlooComm, mediator: FileMediator, world_size: int) -> None:
        self.rank = comm.rank
        self.world_size = world_size
        self._comm = comm
        self.mediator = mediator

    def late(self, name: str, rank: int) -> None:
        """Let `rank` go on only when every other rank has come here, and had time to run ahead."""
        if self.rank != rank:
            self._comm.store.set(f"late/{name}/{self.rank}", "here")
            return
        self._comm.store.wait([f"late/{name}/{r}" for r in range(self.world_size) if r != rank])
        time.sleep(0.1)

    def total(self, number: int) -> int:
        tensor = torch.tensor([number])
        self._comm.group.allreduce([tensor]).wait()
        return int(tensor)


def main(rank: int, world_size: int, folder: str) -> None:
    comm = GlooComm(rank, world_size, os.path.join(folder, "store"))
    mediator = FileMediator(meeting=StoreMeeting(comm, timeout=20.0), rank=rank, exempt=[])
    ranks = RealRanks(comm, mediator, world_size)
    answers = {}
    for name, scenario in SCENARIOS.items():
        work = os.path.join(folder, "work", name)
        os.makedirs(work, exist_ok=True)
        os.chdir(work)
        print(name, file=sys.stderr, flush=True)  # a failing run's log ends with where it was
        comm.barrier()
        mediator.install()
        try:
            answers[name] = answer(scenario, ranks)
        except BaseException:
            print(f"waiting for {mediator.waiting_for}", file=sys.stderr)
            raise
        finally:
            mediator.uninstall()
    with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
        json.dump(answers, file)
    comm.barrier()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(4 * TIMEOUT, exit=True)
    code = 0
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a Gloo group must not see the interpreter's end
