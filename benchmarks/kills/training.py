"""Training of two servers and two workers, killed at random moments."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import xxhash

from benchmarks import importable
from benchmarks.kills.changes import changes, new_shard
from benchmarks.kills.worker import CONFIG_KEY, WorkerConfig, read_progress
from ronde.errors import BenchError
from ronde.launch.linux_process import bind_to_parent, load_prctl
from ronde.launch.server_config import SERVER_KEY, ServerConfig, local_endpoint
from ronde.server.journal import read_records
from ronde.server.shard import ServerShard
from ronde.server.storage import recover
from ronde.server.transport.wire import Opcode

__all__ = ["SERVERS", "WORKERS", "Ended", "state_hash", "train"]

SERVERS = WORKERS = 2

_LOOK_S = 0.005
_PATIENCE_S = 120.0
_EVERYTHING = 1 << 30  # snapshots that are kept: all, so that the whole log can be counted
_SNAPSHOT_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Outcome of a training.

    Attributes:
        seconds: duration.
        killed: number of kills of each process.
        states: a hash of each server's state, marks included.
        records: number of changes in each server's log.
        rows: number of rows of each server's table.
        lost, twice: sequence numbers of workers that no log has, and that one has more than once.
        torn: records that were written half when a server was killed.
        snapshots: number of finished snapshots, over all servers.
    """

    seconds: float
    killed: dict[str, int]
    states: tuple[str, ...]
    records: tuple[int, ...]
    rows: tuple[int, ...]
    lost: int
    twice: int
    torn: int
    snapshots: int


def train(
    directory: Path,
    *,
    steps: int,
    kills: int = 0,
    seed: int = 0,
    progress: Callable[[str], object] = lambda words: None,
) -> Ended:
    """Train to the end, whatever happens to the processes.

    Args:
        directory: an empty one, for logs and snapshots.
        steps: number of steps of the training.
        kills: number of kills, spread over the steps.
        seed: seed of the choice of kills.
        progress: hears of every kill.

    Raises:
        BenchError: a process ended by itself, or the training stands still.
    """
    begun = time.monotonic()
    training = _Training(directory, steps)
    try:
        training.run(_moments(steps, kills, seed), progress)
    finally:
        training.end()
    return _count(directory, training, time.monotonic() - begun)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kill:
    """One kill: the process, and the time by changes or seconds."""

    name: str
    after: int
    delay: float


def _moments(steps: int, kills: int, seed: int) -> list[_Kill]:
    rng = random.Random(seed)
    names = [f"server-{index}" for index in range(SERVERS)] + [f"worker-{rank}" for rank in range(WORKERS)]
    last = changes(steps) - changes(1)
    after = sorted(rng.randrange(last) for _ in range(kills))
    found: list[_Kill] = []
    for each in after:
        # One in four falls into the restart of the one before, or soon after it.
        soon = bool(found) and rng.random() < 0.25
        found.append(
            _Kill(
                rng.choice(names), found[-1].after if soon else each, rng.random() * (2.5 if soon else 0.05)
            )
        )
    return found


class _Program:
    """A process that is started again under the next number."""

    def __init__(self, module: str, environment: Callable[[int], Mapping[str, str]], log: Path) -> None:
        self._module, self._environment, self._log = module, environment, log
        self._library = load_prctl()
        self.started = -1
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.started += 1
        library, parent = self._library, os.getpid()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                (sys.executable, "-m", self._module),
                env=self._environment(self.started),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: bind_to_parent(library, parent),  # noqa: PLW1509 - no other thread is waited for
            )

    def code(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    def stop(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self) -> None:
        if self.process is not None:
            self.process.wait()


class _Training:
    def __init__(self, directory: Path, steps: int) -> None:
        self._steps, self._directory = steps, directory
        token = os.urandom(16).hex()
        name = f"kills-{os.getpid()}-{os.urandom(3).hex()}"
        endpoints = [local_endpoint(name, index) for index in range(SERVERS)]
        base = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": importable()}
        self.killed: dict[str, int] = {}
        self._servers: dict[str, _Program] = {}
        self._workers: dict[str, _Program] = {}
        for index, endpoint in enumerate(endpoints):
            server = ServerConfig(
                index=index,
                servers=SERVERS,
                endpoint=endpoint,
                token=token,
                workers=WORKERS,
                directory=str(directory / f"server-{index}"),
                snapshot_bytes=_SNAPSHOT_BYTES,
                keep=_EVERYTHING,
            )
            self._servers[f"server-{index}"] = _Program(
                "ronde.server.process",
                lambda started, server=server: {
                    **base,
                    SERVER_KEY: dataclasses.replace(server, started=started).to_json(),
                },
                directory / f"server-{index}.log",
            )
        for rank in range(WORKERS):
            worker = WorkerConfig(
                endpoints=endpoints,
                token=token,
                worker=rank,
                workers=WORKERS,
                incarnation=0,
                steps=steps,
                progress=str(self._progress_file(rank)),
            )
            self._workers[f"worker-{rank}"] = _Program(
                "benchmarks.kills.worker",
                lambda started, worker=worker: {
                    **base,
                    CONFIG_KEY: json.dumps(
                        dataclasses.asdict(dataclasses.replace(worker, incarnation=started))
                    ),
                },
                directory / f"worker-{rank}.log",
            )

    def run(self, kills: list[_Kill], progress: Callable[[str], object]) -> None:
        for each in (*self._servers.values(), *self._workers.values()):
            each.start()
        for number, kill in enumerate(kills, 1):
            self._wait_until(lambda kill=kill: self._made() >= kill.after)
            time.sleep(kill.delay)
            program = {**self._servers, **self._workers}[kill.name]
            if program.code() is not None:
                self._check()
            program.stop(signal.SIGKILL)
            program.wait()
            program.start()
            self.killed[kill.name] = self.killed.get(kill.name, 0) + 1
            progress(f"kill {number} of {len(kills)}: {kill.name}, after change {self._made()}")
        self._wait_until(lambda: all(each.code() == 0 for each in self._workers.values()))

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in (*self._workers.values(), *self._servers.values()):
                each.stop(number)
            until = time.monotonic() + 5
            for each in (*self._workers.values(), *self._servers.values()):
                if each.process is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        each.process.wait(max(until - time.monotonic(), 0.01))

    def _made(self) -> int:
        """Changes that all workers know to be made by all servers."""
        return min(read_progress(self._progress_file(rank)) for rank in range(WORKERS))

    def _progress_file(self, rank: int) -> Path:
        return self._directory / f"worker-{rank}.progress"

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        moved, made = time.monotonic(), self._made()
        while not reached():
            self._check()
            if self._made() != made:
                moved, made = time.monotonic(), self._made()
            elif time.monotonic() - moved > _PATIENCE_S:
                raise BenchError(
                    f"no change for {_PATIENCE_S:g} s after change {made}; see {self._directory}"
                )
            time.sleep(_LOOK_S)

    def _check(self) -> None:
        """Check that processes end only as workers that are done."""
        for name, each in {**self._servers, **self._workers}.items():
            code = each.code()
            if code is not None and not (code == 0 and name in self._workers):
                raise BenchError(f"{name} ended with {code}; see its log in {self._directory}")


def state_hash(shard: ServerShard) -> str:
    """Return a hash of a server's state, marks included."""
    told, arrays = shard.state()
    digest = xxhash.xxh3_128(json.dumps(told, sort_keys=True).encode())
    for array in arrays:
        digest.update((array() if callable(array) else array).tobytes())
    return digest.hexdigest()


def _count(directory: Path, training: _Training, seconds: float) -> Ended:
    states: list[str] = []
    records: list[int] = []
    rows: list[int] = []
    lost = twice = torn = finished = 0
    for index in range(SERVERS):
        folder = directory / f"server-{index}"
        shard, sparse = new_shard()
        recover(folder, shard, lambda words: None, mend=False)
        states.append(state_hash(shard))
        rows.append(sum(len(table) for table in sparse.tables.values()))
        log = list(read_records(folder, 0, lambda words: None, mend=False))
        records.append(len(log))
        seen: dict[int, list[int]] = {}
        for record in log:
            if record.operation is not Opcode.LEAVE:
                for worker, mark in record.marks.items():
                    seen.setdefault(worker, []).append(mark)
        for marks in seen.values():
            lost += len(set(range(1, max(marks) + 1)) - set(marks))
            twice += len(marks) - len(set(marks))
        said = (directory / f"server-{index}.log").read_text()
        torn += said.count("the last change is incomplete")
        finished += said.count("snapshot of")
    return Ended(
        seconds=round(seconds, 2),
        killed=training.killed,
        states=tuple(states),
        records=tuple(records),
        rows=tuple(rows),
        lost=lost,
        twice=twice,
        torn=torn,
        snapshots=finished,
    )
