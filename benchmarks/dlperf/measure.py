"""Rounds of all frameworks with each case, on one process and on two."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.dlperf.cases import CASES, Case
from benchmarks.dlperf.environments import Missing, interpreter_of
from benchmarks.dlperf.frameworks import FRAMEWORKS, OURS, Framework
from benchmarks.dlperf.table import QUANTITIES, Measured, Run, notes_of, rows_of, same_training
from ronde.bench.choice import check_known
from ronde.bench.machine import Machine
from ronde.bench.process_set import Process, run_all, run_together
from ronde.bench.report import Report
from ronde.bench.rounds import Progress, orders
from ronde.errors import BenchError

__all__ = ["measure", "run_of"]

_SCRIPTS = Path(__file__).with_name("scripts")
_TIMEOUT = 600.0
_TRIES = 3  # of a peer: torch now and then aborts at its exit
_LINE = re.compile(r"dlperf-line (\{.*\})")


def measure(
    workloads: Sequence[str], against: Sequence[str], *, rounds: int, cache: Path, say: Progress
) -> Report:
    """Train each workload with each framework on one and on two processes, in rounds.

    All have the same initial weights, batches and threads for each process. A framework that cannot be
    had or that fails has a row with the reason below the table.

    Raises:
        UsageError: a workload or a framework is unknown.
        BenchError: ronde fails.
    """
    check_known(workloads, CASES, what="workload")
    check_known(against, FRAMEWORKS, what="framework")
    machine = Machine.here()
    threads = max(1, machine.cores // 2)
    missing: dict[str, str] = {}
    interpreters: dict[str, str] = {}
    for name in dict.fromkeys((OURS, *against)):
        try:
            interpreters[name] = interpreter_of(FRAMEWORKS[name], cache, say)
        except Missing as reason:
            missing[name] = str(reason)
    found: list[Measured] = []
    for case in (CASES[name] for name in workloads):
        found += _measure_case(case, interpreters, rounds, threads, say)
    versions = {each.framework: each.version for each in found if each.version and each.framework != OURS}
    batches = {f"batch of {name}": str(CASES[name].batch) for name in workloads}
    return Report(
        kind="dlperf",
        machine=machine,
        settings={"rounds": str(rounds), "threads of a process": str(threads), **batches, **versions},
        quantities=QUANTITIES,
        results=tuple(rows_of(found, workloads, missing)),
        notes=notes_of(found, workloads, against, missing),
    )


def _measure_case(
    case: Case, interpreters: Mapping[str, str], rounds: int, threads: int, say: Progress
) -> list[Measured]:
    names = [name for name in interpreters if case.has(name)]
    measured = {name: Measured(workload=case.name, framework=name) for name in names}
    with tempfile.TemporaryDirectory(prefix="ronde-dlperf-") as folder:
        arrays = Path(folder) / "arrays.npz"
        write = (sys.executable, str(_SCRIPTS / "write_arrays.py"), _told(case, arrays))
        run_together([Process(command=write, environment=os.environ)], timeout=_TIMEOUT)
        for number, order in enumerate(orders(names, rounds), 1):
            for name in order:
                mine = measured[name]
                if mine.reason:
                    continue
                run = partial(_run, FRAMEWORKS[name], case, arrays, interpreters[name], threads, say)
                try:
                    one, two = run(1), run(2)
                except BenchError as error:
                    if name == OURS:
                        raise
                    # Behind the command line, which has paths of this host.
                    mine.reason = f"it has failed: {str(error).rpartition('}` ')[2]}"
                    continue
                mine.add(one, two)
                say(
                    f"{case.name}, round {number} of {rounds}, {name}: {one.speed:.2f} samples/s, "
                    f"{two.speed:.2f} on two, losses {one.losses[-1]:.6f}, {two.losses[-1]:.6f}"
                )
    for name in names:
        same_training(measured[OURS], measured[name], case)
    return list(measured.values())


def _run(
    framework: Framework, case: Case, arrays: Path, interpreter: str, threads: int, say: Progress, ranks: int
) -> Run:
    for _ in range(0 if framework.name == OURS else _TRIES - 1):
        try:
            return run_of(framework, case, arrays, interpreter, ranks, threads)
        except BenchError as error:
            say(f"{framework.name} failed in this round and ran once more: {error}")
    return run_of(framework, case, arrays, interpreter, ranks, threads)


def _told(case: Case, arrays: Path) -> str:
    """Return the argument of the scripts."""
    return json.dumps({**dataclasses.asdict(case), "arrays": str(arrays)})


def run_of(framework: Framework, case: Case, arrays: Path, interpreter: str, ranks: int, threads: int) -> Run:
    """Run a framework's script on so many processes.

    Raises:
        BenchError: a process fails, or none has told its figures.
    """
    launches = framework.start(
        (interpreter, str(_SCRIPTS / framework.file), _told(case, arrays)), ranks, threads
    )
    base = dict(os.environ)
    if framework.requirements:
        base.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="ronde-dlperf-run-") as state:
        base["XDG_STATE_HOME"] = state
        processes = [Process(command=command, environment={**base, **own}) for command, own in launches]
        outputs, _ = run_all(processes, timeout=_TIMEOUT)
    lines = [json.loads(line) for output in outputs for line in _LINE.findall(output)]
    if not lines:
        raise BenchError(
            f"{framework.title} has ended without figures; it said: {outputs[0][-300:]!r} [R852]"
        )
    return Run.of(lines, case)
