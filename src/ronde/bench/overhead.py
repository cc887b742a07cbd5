"""`ronde bench overhead`: one rank against plain Python per step and at the start, two against torchrun."""

from __future__ import annotations

import compileall
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import ronde
from ronde.bench import data_parallel
from ronde.bench.choice import check_device, check_known
from ronde.bench.contenders import by_torchrun, plain, under_ronde
from ronde.bench.machine import Machine
from ronde.bench.report import Report
from ronde.bench.rounds import Round, measure

__all__ = ["LANGUAGE_MODELS", "USUAL", "WORKLOADS", "compare"]

USUAL = ("host", "tiny", "mlp-512", "mlp", "start-up", "start-up-2")
# In bfloat16: a billion parameters are for a CUDA device, the other tries the same script anywhere.
LANGUAGE_MODELS = ("lm-1b", "lm-tiny")
WORKLOADS = tuple(dict.fromkeys((*USUAL, *data_parallel.WORKLOADS, *LANGUAGE_MODELS)))


def compare(
    workloads: Sequence[str],
    *,
    device: str,
    rounds: int,
    steps: int | None,
    environment: Mapping[str, str],
    progress: Callable[[str, int, int, Round], None],
) -> Report:
    """Measure each workload in rounds; threads are what torch chooses in both.

    Args:
        steps: timed steps of every run; None for each workload's own number. Start-up has one.
        progress: hears the workload, a round's number, how many there are, and the round.

    Raises:
        UsageError: for a workload or a device that there is not.
        BenchError: when a run fails, or the two did not train alike.
    """
    check_known(workloads, WORKLOADS, what="workload")
    check_device(device, environment)
    # As pip does at installation; under PYTHONDONTWRITEBYTECODE a checkout would compile at every start.
    compileall.compile_dir(Path(ronde.__file__).parent, quiet=2)
    machine = Machine.here()
    results = []
    for name in workloads:
        arguments = [] if steps is None or name.startswith("start-up") else ["--steps", str(steps)]
        if device != "cpu":
            arguments += ["--device", device]
        ranks = 2 if name == "start-up-2" else 1
        peer = plain(name, arguments, environment=environment) if ranks == 1 else by_torchrun(environment)
        contenders = [under_ronde(name, arguments, ranks=ranks, threads=None, environment=environment), peer]
        results.append(measure(name, contenders, rounds=rounds, progress=partial(progress, name, rounds)))
    return Report(
        kind="overhead",
        method="global",
        machine=machine,
        versions={},
        ranks=1,
        threads=None,
        results=tuple(results),
    )
