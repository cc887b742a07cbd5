"""Kills a random rank at a random moment of a long row of collectives, again and again.

Run as `kill_rounds.py ROUNDS SEED FOLDER`; prints what was not as it should be, as JSON. With no rounds one
rank is stopped instead. Ranks are forked from this process, which has imported torch already: a round takes a
tenth of a second.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition
from ronde.errors import PeerLost

_SAW_IT = 7
_PATIENCE_S = 2.0


def work(rank: int, ranks: int, folder: Path, started: int) -> None:
    """Collectives until a peer is lost; the error is left in a file."""
    torch.set_num_threads(1)
    comm = join(
        f"file://{folder}/store",
        name="work",
        place=RankPosition(rank, ranks, rank, ranks),
        device="cpu",
        timeout=timedelta(seconds=60),
        host="127.0.0.1",
    )
    draw = random.Random(ranks)
    (buffer,) = comm.allocate([(100_000, torch.float32)], [torch.device("cpu")])
    os.write(started, b".")
    try:
        while True:
            size = draw.choice((1, 1000, 100_000, 1_000_000))
            if draw.random() < 0.3:
                buffer.open(0)
                buffer.launch()
                buffer.reduce()
                buffer.collect()
                buffer.settle()
            elif draw.random() < 0.3:
                mailbox = comm.backend.shared.mailbox  # pyright: ignore[reportAttributeAccessIssue]
                mailbox.wait(mailbox.send(torch.ones(size).view(torch.uint8), (rank + 1) % ranks))
                mailbox.wait(mailbox.receive(torch.ones(size).view(torch.uint8), (rank - 1) % ranks))
            elif draw.random() < 0.5:
                comm.all_reduce(torch.ones(size))
            else:
                comm.all_gather(torch.ones(size))
    except PeerLost as error:
        (folder / f"error-{rank}").write_text(str(error))
        os._exit(_SAW_IT)


def stopped(folder: Path, all_pids: set[int]) -> list[str]:
    """One of two ranks is stopped, as by Ctrl-Z for it alone: the other gives up and says so."""
    first, second = started(2, folder)
    all_pids.update((first, second))
    os.kill(second, signal.SIGSTOP)
    _, status = os.waitpid(first, 0)
    os.kill(second, signal.SIGKILL)
    os.waitpid(second, 0)
    text = (folder / "error-0").read_text()
    right = os.waitstatus_to_exitcode(status) == _SAW_IT and f"rank 1 (process {second}) is stopped" in text
    return [] if right else [text]


def started(ranks: int, folder: Path) -> list[int]:
    """Process numbers of ranks that are all at work."""
    folder.mkdir()
    reads, writes = os.pipe()
    pids: list[int] = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            work(rank, ranks, folder, writes)
        pids.append(pid)
    for _ in range(ranks):
        os.read(reads, 1)
    os.close(reads)
    os.close(writes)
    return pids


def left_by(pids: set[int]) -> list[str]:
    """Shared memory whose name carries the number of one of these; other tests have theirs there too."""
    return sorted(
        name for name in os.listdir("/dev/shm") if pids & {int(n) for n in re.findall(r"\d+", name)}
    )


def one_round(draw: random.Random, folder: Path, all_pids: set[int]) -> list[str]:
    ranks = draw.choice((2, 3, 4))
    pids = started(ranks, folder)
    all_pids.update(pids)
    victim = draw.randrange(ranks)
    time.sleep(draw.random() * 0.03)  # the moment is what this varies
    os.kill(pids[victim], signal.SIGKILL)
    end = time.monotonic() + _PATIENCE_S
    wrong: list[str] = []
    for rank, pid in enumerate(pids):
        if rank == victim:
            os.waitpid(pid, 0)
            continue
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.002)
        if not ended[0]:
            wrong.append(f"rank {rank} of {ranks} waits on after {_PATIENCE_S} s")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        elif os.waitstatus_to_exitcode(ended[1]) != _SAW_IT:
            wrong.append(f"rank {rank} of {ranks} ended with {os.waitstatus_to_exitcode(ended[1])}")
        elif f"(process {pids[victim]}) has died" not in (text := (folder / f"error-{rank}").read_text()):
            # Who saw a death has died itself; a third rank may name either.
            dead = [each for each in pids if f"(process {each}) has died" in text]
            if not dead:
                wrong.append(f"rank {rank} of {ranks} says {text!r}")
    return wrong


def main() -> None:
    rounds, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    pids = {os.getpid()}
    draw = random.Random(seed)
    wrong = [line for turn in range(rounds) for line in one_round(draw, folder / str(turn), pids)]
    wrong += stopped(folder / "stopped", pids) if not rounds else []
    print(json.dumps({"wrong": wrong, "left": left_by(pids)}))


if __name__ == "__main__":
    main()
