"""Speed of ways of synchronising, between hosts and on one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.sync.contender import CONTENDERS, Contender, command
from benchmarks.sync.figures import QUANTITIES, SLOW_RANK, Sample, Way, notes_of, rows_of
from ronde.bench.choice import check_known
from ronde.bench.machine import Machine
from ronde.bench.process_set import Process, run_together
from ronde.bench.report import Report
from ronde.bench.rounds import Progress
from ronde.errors import BenchError, UsageError
from ronde.testing.hosts import Host, Network

__all__ = ["HERE", "PLACES", "Training", "measure", "training_of"]

HERE = "one host"
PLACES = {"100mbit": "100mbit", "1gbit": "1gbit", "host": HERE, "slow-rank": SLOW_RANK}
"""Places by the words of the command line."""
_PORT = "29450"
_TIMEOUT_S = 3600.0
_WARM_UP = 8
_SLOW_RATE, _SLOW_PAUSE_MS, _SLOW_WIDTH = "1gbit", 20.0, 512
_CURVE = 20  # tests of a run to an accuracy
_PICTURES = 60_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Runs to an accuracy.

    Attributes:
        data: a folder of Fashion-MNIST.
        target: the accuracy on the 10,000 test pictures, from 0 to 1.
        epochs: epochs over which the learning rate falls to zero.
        seeds: runs of each contender, from seed 0 on.
    """

    data: Path
    target: float
    epochs: int
    seeds: int


def training_of(
    *, data: Path | None, target: float | None, epochs: int | None, seeds: int | None
) -> Training | None:
    """Return the runs to an accuracy from options; None without a target.

    Raises:
        UsageError: a target lacks its pictures, or its options lack a target.
    """
    if target is None:
        if (data, epochs, seeds) != (None, None, None):
            raise UsageError("--data, --epochs and --seeds are of runs to an accuracy; give it by --target")
        return None
    if data is None or not (data / "train-images-idx3-ubyte.gz").exists():
        raise UsageError(
            f"--target {target:g} needs --data FOLDER with Fashion-MNIST "
            "(train-images-idx3-ubyte.gz and the three other files; Debian's package "
            "dataset-fashion-mnist has them in /usr/share/datasets/fashion-mnist)"
        )
    return Training(data=data, target=target, epochs=epochs or 3, seeds=seeds or 1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """The hosts of ranks: one for each, or this one for all."""

    hosts: tuple[Host, ...]
    ranks: int
    slow: bool = False

    def processes(self, contender: Contender, arguments: tuple[str, ...]) -> list[Process]:
        threads = str(max(1, (os.cpu_count() or 1) // self.ranks))
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        if not self.hosts:
            here = ("--standalone", "--nproc-per-node", str(self.ranks))
            return [Process(command=command(contender, here, arguments), environment=environment)]
        # The name of a host is unknown to others; ronde finds the card by itself.
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


def measure(
    *,
    names: Sequence[str],
    places: Sequence[str],
    ranks: int,
    steps: int,
    rounds: int,
    batch_size: int,
    training: Training | None,
    say: Progress,
) -> Report:
    """Time each contender in each place.

    Args:
        places: keys of `PLACES`.
        steps: timed steps of the slowest contenders, after a warm-up.
        training: runs of each contender to an accuracy on this host; only async-average takes other steps
            there than over links.

    Raises:
        UsageError: a way or a place is unknown.
        BenchError: a run failed.
    """
    check_known(names, CONTENDERS, what="way")
    check_known(places, PLACES, what="place")
    machine = Machine.here()
    curves = {} if training is None else {n: _curve(n, ranks, batch_size, training) for n in names}
    ways: list[Way] = []
    for place in (PLACES[each] for each in places):
        with _place(place, ranks) as where:
            timed: dict[str, list[Sample]] = {name: [] for name in names}
            for number in range(rounds):
                for name in names if number % 2 == 0 else reversed(names):
                    timed[name].append(_timed(CONTENDERS[name], where, steps, batch_size))
        for name in names:
            steps_to, accuracies = curves.get(name, (None, ()))
            ways.append(
                Way(
                    name=name,
                    place=place,
                    samples=tuple(timed[name]),
                    steps_to=steps_to,
                    accuracies=accuracies,
                )
            )
            rates = ", ".join(f"{speed:.2f}" for speed in ways[-1].speeds)
            say(f"{place}, {name}: {rates} steps/s")
    target = {} if training is None else {"accuracy to reach": f"{training.target:.1%}"}
    return Report(
        kind="sync",
        machine=machine,
        settings={"global batch": str(batch_size), **target},
        quantities=QUANTITIES,
        results=tuple(rows_of(ways)),
        notes=notes_of(ways),
    )


@contextmanager
def _place(place: str, ranks: int) -> Iterator[_Place]:
    slow = place == SLOW_RANK
    count, rate = (4, _SLOW_RATE) if slow else (ranks, place)
    with nullcontext() if place == HERE else Network(count, rate=rate) as network:
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
    """Return steps to the accuracy and final accuracies.

    The steps are those of the slowest seed; None where one did not reach it.
    """
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
