"""One rank of the file tests: runs every scenario with files mediated and writes what it saw as JSON.

    python files_rank.py RANK WORLD_SIZE FOLDER

The ranks share `FOLDER/work/SCENARIO` as working directory; rank r's answers go to `FOLDER/rank-r.json`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta

import torch

from files.files_scenarios import SCENARIOS, Ranks, answer
from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition
from ronde.files import ScriptFiles, paths_of_rank

TIMEOUT = 20


class RealRanks(Ranks):
    """What a scenario can ask about, and do to, the ranks it runs on."""

    def __init__(self, comm: Comm, script_files: ScriptFiles, world_size: int) -> None:
        self.rank = comm.rank
        self.world_size = world_size
        self._comm = comm
        self.script_files = script_files

    def late(self, name: str, rank: int) -> None:
        """Let `rank` go on only when every other rank has come here, and had time to run ahead."""
        if self.rank != rank:
            self._comm.store.set(f"late/{name}/{self.rank}", "here")
            return
        self._comm.store.wait([f"late/{name}/{r}" for r in range(self.world_size) if r != rank])
        time.sleep(0.1)

    @contextlib.contextmanager
    def first(self, name: str, rank: int) -> Iterator[None]:
        if self.rank != rank:
            self._comm.store.wait([f"first/{name}"])
        yield
        if self.rank == rank:
            self._comm.store.set(f"first/{name}", "done")

    @contextlib.contextmanager
    def last(self, name: str, rank: int) -> Iterator[None]:
        if self.rank == rank:
            self._comm.store.wait([f"last/{name}/{r}" for r in range(self.world_size) if r != rank])
        yield
        if self.rank != rank:
            self._comm.store.set(f"last/{name}/{self.rank}", "done")

    def total(self, number: int) -> int:
        return int(self._comm.all_reduce(torch.tensor([number])))


def main(rank: int, world_size: int, folder: str) -> None:
    comm = join(
        f"file://{folder}/store",
        name="files",
        place=RankPosition(rank, world_size, rank, world_size),
        device="cpu",
        timeout=timedelta(seconds=TIMEOUT),
        host="127.0.0.1",
    )
    script_files = ScriptFiles(comm=comm, paths=paths_of_rank(), shared=folder)
    ranks = RealRanks(comm, script_files, world_size)
    answers = {}
    for name, scenario in SCENARIOS.items():
        work = os.path.join(folder, "work", name)
        os.makedirs(work, exist_ok=True)
        os.chdir(work)
        print(name, file=sys.stderr, flush=True)  # a failing run's log ends with where it was
        comm.barrier()
        script_files.install()
        try:
            answers[name] = answer(scenario, ranks)
        finally:
            script_files.uninstall()
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
