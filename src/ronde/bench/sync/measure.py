"""Runs contenders between hosts, one after another in every round."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from ronde.bench.machine import Machine
from ronde.bench.process_set import Process, run_together
from ronde.bench.sync.contender import CONTENDERS, Contender, command
from ronde.bench.sync.report import SLOW_RANK, Sample, SyncReport, Way
from ronde.errors import BenchError

__all__ = ["HERE", "Networks", "Training", "measure"]

HERE = "one host"
_PORT = "29450"
_TIMEOUT_S = 3600.0
_WARM_UP = 8
_SLOW_RATE, _SLOW_PAUSE_MS, _SLOW_WIDTH = "1gbit", 20.0, 512
_CURVE = 20  # tests of a run to an accuracy
_PICTURES = 60_000


class _Host(Protocol):
    """One host of a network."""

    address: str

    def command(self, words: Sequence[str], *, directory: str | None = None) -> list[str]:
        """The command that runs `words` there."""
        ...


class _Network(Protocol):
    hosts: tuple[_Host, ...]


Networks = Callable[[int, str], AbstractContextManager[Any]]
"""So many hosts with links of this rate."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Of runs to an accuracy.

    Attributes:
        data: a folder of Fashion-MNIST.
        target: the accuracy, of the 10,000 pictures to be tested on, from 0 to 1.
        epochs: over which the rate falls to nothing.
        seeds: runs of each contender, from seed 0 on.
    """

    data: Path
    target: float
    epochs: int
    seeds: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where ranks are: one on each host, or all on this one."""

    hosts: tuple[_Host, ...]
    ranks: int
    slow: bool = False

    def processes(self, contender: Contender, arguments: tuple[str, ...]) -> list[Process]:
        threads = str(max(1, (os.cpu_count() or 1) // self.ranks))
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        if not self.hosts:
            here = ("--standalone", "--nproc-per-node", str(self.ranks))
            return [Process(command=command(contender, here, arguments), environment=environment)]
        # A host's own name is no address for others; ronde finds the card by itself.
        environment |= {} if contender.plan else {"GLOO_SOCKET_IFNAME": "eth0"}
        found: list[Process] = []
        for number, host in enumerate(self.hosts):
            there = (
                *("--nnodes", str(len(self.hosts)), "--node-rank", str(number), "--nproc-per-node", "1"),
                *("--master-addr", self.hosts[0].address, "--master-port", _PORT),
            )
            words = host.command(command(contender, there, arguments))
            slower = {"RONDE_BENCH_SLOWER": "2"} if self.slow and number == len(self.hosts) - 1 else {}
            found.append(Process(command=tuple(words), environment={**environment, **slower}))
        return found


def measure(  # noqa: PLR0913 - the options of a command
    *,
    names: Sequence[str],
    places: Sequence[str],
    ranks: int,
    steps: int,
    rounds: int,
    batch_size: int,
    training: Training | None,
    networks: Networks,
    progress: Callable[[Way], None],
) -> SyncReport:
    """Time each contender in each place.

    Args:
        places: rates of links between hosts ("100mbit"), `HERE`, `SLOW_RANK`.
        steps: that the slowest contenders are timed for, behind a warm-up.
        training: each contender trains on this host too, for its accuracy: how many steps that takes no link
            changes, but for async-average.

    Raises:
        BenchError: a run failed.
    """
    machine = Machine.here()
    curves = {} if training is None else {n: _curve(n, ranks, batch_size, training) for n in names}
    results: list[Way] = []
    for place in places:
        with _place(place, ranks, networks) as where:
            timed: dict[str, list[Sample]] = {name: [] for name in names}
            for number in range(rounds):
                for name in names if number % 2 == 0 else reversed(names):
                    timed[name].append(_timed(CONTENDERS[name], where, steps, batch_size))
        for name in names:
            steps_to, accuracies = curves.get(name, (None, ()))
            results.append(
                Way(
                    name=name,
                    place=place,
                    samples=tuple(timed[name]),
                    steps_to=steps_to,
                    accuracies=accuracies,
                )
            )
            progress(results[-1])
    return SyncReport(
        machine=machine,
        batch_size=batch_size,
        target=None if training is None else training.target,
        results=tuple(results),
    )


@contextmanager
def _place(place: str, ranks: int, networks: Networks) -> Iterator[_Place]:
    slow = place == SLOW_RANK
    count, rate = (4, _SLOW_RATE) if slow else (ranks, place)
    with nullcontext() if place == HERE else networks(count, rate) as network:
        yield _Place(hosts=() if network is None else network.hosts, ranks=count, slow=slow)


def _timed(contender: Contender, place: _Place, steps: int, batch_size: int) -> Sample:
    timed = steps * contender.share
    arguments = [
        "--steps",
        str(_WARM_UP + timed),
        "--warm-up",
        str(_WARM_UP),
        "--batch-size",
        str(batch_size),
    ]
    if place.slow:
        arguments += ["--pause", str(_SLOW_PAUSE_MS), "--width", str(_SLOW_WIDTH)]
    told = _run(place.processes(contender, tuple(arguments)), contender)
    return Sample(
        steps_per_second=told["steps"] / told["seconds"], megabytes=told["sent"] / told["steps"] / 1e6
    )


def _curve(
    name: str, ranks: int, batch_size: int, training: Training
) -> tuple[int | None, tuple[float, ...]]:
    """Steps to the accuracy, of the seeds the most (None where one never had it), and each one's accuracy."""
    place = _Place(hosts=(), ranks=ranks)
    contender = CONTENDERS[name]
    contender = dataclasses.replace(contender, plan=contender.accuracy_plan or contender.plan)
    steps = training.epochs * (_PICTURES // batch_size)
    firsts: list[int | None] = []
    accuracies: list[float] = []
    for seed in range(training.seeds):
        arguments = (
            "--steps", str(steps), "--batch-size", str(batch_size), "--data", str(training.data), "--decay",
            "--test-every", str(max(1, steps // _CURVE)), "--seed", str(seed),
        )  # fmt: skip
        told = _run(place.processes(contender, arguments), contender)
        curve: list[tuple[int, float]] = told["accuracy"]
        firsts.append(next((step for step, accuracy in curve if accuracy >= training.target), None))
        accuracies.append(curve[-1][1])
    reached = [each for each in firsts if each is not None]
    return max(reached) if len(reached) == len(firsts) else None, tuple(accuracies)


def _run(processes: Sequence[Process], contender: Contender) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ronde-bench-sync-") as folder:
        state = {"XDG_STATE_HOME": folder}
        own = [Process(command=each.command, environment={**each.environment, **state}) for each in processes]
        try:
            said, _ = run_together(own, timeout=_TIMEOUT_S)
        except subprocess.SubprocessError as error:
            raise BenchError(f"{contender.name}: {error}") from None
    lines = [line for line in said.splitlines() if line.startswith('{"steps"')]
    if not lines:
        raise BenchError(f"{contender.name} has ended without figures; it said: {said[-300:]} [R852]")
    return json.loads(lines[-1])
