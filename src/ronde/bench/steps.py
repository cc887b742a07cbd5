"""Steps of scripts under ronde and others: `ronde bench dp` and `ronde bench overhead`."""

from __future__ import annotations

import compileall
from collections.abc import Mapping, Sequence
from pathlib import Path

import ronde
from ronde.bench.choice import check_device, check_known
from ronde.bench.contenders import by_torchrun, plain, under_ronde, with_peer
from ronde.bench.machine import Machine
from ronde.bench.method import Method
from ronde.bench.peers import LIMIT, PEERS, Peer
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import OURS, ROUNDING, Progress, measure, ratios
from ronde.bench.sample import Sample
from ronde.bench.spread import Spread

__all__ = [
    "DP", "DP_USUAL", "DP_WORKLOADS", "LANGUAGE_MODELS", "NOTES", "OVERHEAD", "OVERHEAD_NOTES",
    "OVERHEAD_USUAL", "OVERHEAD_WORKLOADS", "compare_data_parallel", "compare_overhead", "compared",
    "notes_of",
]  # fmt: skip

DP_USUAL = ("transformer", "gpt", "resnet18-gn", "resnet18-bn", "bert", "mlp")
DP_WORKLOADS = (*DP_USUAL, "bert-no-dropout", "mlp-512", "mlp-20k", "clicks-1m", "clicks-4m")
OVERHEAD_USUAL = ("host", "tiny", "mlp-512", "mlp", "start-up", "start-up-2")
LANGUAGE_MODELS = ("lm-1b", "lm-tiny")
"""Models in bfloat16: a billion parameters for a CUDA device, and a small twin for any."""
OVERHEAD_WORKLOADS = tuple(dict.fromkeys((*OVERHEAD_USUAL, *DP_WORKLOADS, *LANGUAGE_MODELS)))

# Workloads on which peers do not compute the single-device result, and so differ from ronde.
NOTES = {
    "resnet18-bn": "the peers normalize with the statistics of each rank's own rows, as users write it; "
    "ronde with those of the global batch, as on one device",
    "bert": "dropout is the single-device draw under ronde (rng=global), each rank's own with the peers",
}
# The allowed distance of last losses there.
_OTHER_COMPUTATION = 0.3

DP = {
    "ronde": Quantity(unit="samples/s"),
    "peer": Quantity(unit="samples/s"),
    "of medians": Quantity(),
    "ratio": Quantity(unit="x", spread=True, drawn=True),
    "of the limit": Quantity(unit="x", spread=True, drawn=True),
}
OVERHEAD = {
    "other": Quantity(unit="us/step"),
    "added": Quantity(unit="us/step", spread=True, drawn=True),
    "added part": Quantity(unit="%"),
    "added to the whole run": Quantity(unit="s", spread=True, drawn=True),
}
_RATIO = (
    "ratio: ronde's samples/s over the peer's, above 1 is faster: of the medians over all rounds, and "
    "median and quartiles of the ratios within a round"
)
_LIMIT = (
    f"of the limit: a contender's samples/s over those of {LIMIT.title}, round by round: as many processes, "
    "each by itself on its share of every batch"
)
OVERHEAD_NOTES = (
    "added: ronde's time less the other's, median and quartiles of the differences within a round",
)


def compared(workload: str, samples: Mapping[str, Sequence[Sample]]) -> list[Result]:
    """Return a row for each peer, and one for ronde and the limit."""
    ours = samples[OURS]
    limit = samples.get(LIMIT.name)
    titles = {name: each.title for name, each in (*PEERS.items(), (LIMIT.name, LIMIT))}
    found = []
    if limit is not None:
        figures = {"ronde": _speeds(ours), "of the limit": ratios(_speeds(ours), _speeds(limit))}
        found.append(Result(labels={"workload": workload, "contender": OURS}, samples=figures))
    for peer, theirs in samples.items():
        if peer == OURS:
            continue
        speeds = [_speeds(ours), _speeds(theirs)]
        medians = [Spread.of(each).median for each in speeds]
        pairs = list(zip(ours, theirs, strict=True))
        steps = {
            "ronde": speeds[0],
            "peer": speeds[1],
            "of medians": (medians[0] / medians[1],),
            "ratio": ratios(*speeds),
            **({} if limit is None else {"of the limit": ratios(speeds[1], _speeds(limit))}),
            "other": tuple(each.step_microseconds for each in theirs),
            "added": tuple(own.step_microseconds - other.step_microseconds for own, other in pairs),
            "added part": tuple(
                (own.step_microseconds / other.step_microseconds - 1) * 100 for own, other in pairs
            ),
        }
        whole = tuple(own.wall_seconds - other.wall_seconds for own, other in pairs)
        figures = {"added to the whole run": whole} if workload.startswith("start-up") else steps
        figures |= {
            "loss of ronde": tuple(each.loss for each in ours),
            "loss of the peer": tuple(each.loss for each in theirs),
            "seconds of ronde": tuple(each.wall_seconds for each in ours),
            "seconds of the peer": tuple(each.wall_seconds for each in theirs),
            "batch": (float(ours[0].batch_size),),
            "timed steps": (float(ours[0].steps),),
        }
        labels = {"workload": workload, "contender": titles.get(peer, peer)}
        found.append(Result(labels=labels, samples=figures))
    return found


def _speeds(runs: Sequence[Sample]) -> tuple[float, ...]:
    return tuple(each.samples_per_second for each in runs)


def notes_of(workloads: Sequence[str], method: str) -> tuple[str, ...]:
    """Return the notes below a table of `ronde bench dp`."""
    of_method = "method dlperf: the workload's batch on each rank, 20 steps ignored, 100 timed"
    told = [_RATIO, *([of_method] if method == "dlperf" else [])]
    return (*told, *(f"{name}: {note}" for name, note in NOTES.items() if name in workloads))


def compare_data_parallel(  # noqa: PLR0913 - each is an option of `ronde bench dp`
    workloads: Sequence[str],
    *,
    against: Sequence[Peer],
    method: Method,
    ranks: int,
    rounds: int | None,
    steps: int | None,
    environment: Mapping[str, str],
    plan: str = "ddp",
    progress: Progress,
) -> Report:
    """Measure each workload in rounds; the ranks of all contenders share the cores equally.

    Args:
        rounds: runs of each contender; None for the method's number.
        plan: the plan of ronde.
        steps: timed steps of every run; None for the method's or each workload's own number.

    Raises:
        UsageError: a workload is unknown, or the method refuses the options.
        BenchError: a run fails, or two did not train alike.
    """
    check_known(workloads, DP_WORKLOADS, what="workload")
    arguments = method.arguments(ranks=ranks, steps=steps)
    machine = Machine.here()
    threads = max(1, machine.cores // ranks)
    results: list[Result] = []
    commands: list[str] = []
    for name in workloads:
        contenders = [
            under_ronde(name, arguments, ranks=ranks, threads=threads, environment=environment, plan=plan),
            *(
                with_peer(peer, name, arguments, ranks=ranks, threads=threads, environment=environment)
                for peer in (*against, LIMIT)
            ),
        ]
        tolerance = _OTHER_COMPUTATION if name in NOTES else ROUNDING
        measured = measure(
            name, contenders, rounds=rounds or method.rounds, progress=progress, tolerance=tolerance
        )
        results += compared(name, measured)
        commands += [each.command for each in contenders]
    settings = {"ranks": str(ranks), "threads": str(threads), "method": method.name, "plan": plan}
    return Report(
        kind="dp",
        machine=machine,
        settings={**settings, **{peer.name: peer.version for peer in against}},
        quantities=DP,
        results=tuple(results),
        notes=(_LIMIT, *notes_of(workloads, method.name), *(f"command: {each}" for each in commands)),
    )


def compare_overhead(
    workloads: Sequence[str],
    *,
    device: str,
    rounds: int,
    steps: int | None,
    environment: Mapping[str, str],
    progress: Progress,
) -> Report:
    """Measure each workload on one rank, and in plain python.

    Threads are torch's choice in both.

    Args:
        steps: timed steps of every run; None for each workload's own number. Start-up has one.

    Raises:
        UsageError: a workload or the device is unknown.
        BenchError: a run fails, or the two did not train alike.
    """
    check_known(workloads, OVERHEAD_WORKLOADS, what="workload")
    check_device(device, environment)
    # As pip does at installation; under PYTHONDONTWRITEBYTECODE a checkout would compile at every start.
    compileall.compile_dir(Path(ronde.__file__).parent, quiet=2)
    machine = Machine.here()
    results: list[Result] = []
    for name in workloads:
        arguments = [] if steps is None or name.startswith("start-up") else ["--steps", str(steps)]
        if device != "cpu":
            arguments += ["--device", device]
        ranks = 2 if name == "start-up-2" else 1
        peer = plain(name, arguments, environment=environment) if ranks == 1 else by_torchrun(environment)
        ours = under_ronde(name, arguments, ranks=ranks, threads=None, environment=environment)
        results += compared(name, measure(name, [ours, peer], rounds=rounds, progress=progress))
    return Report(
        kind="overhead",
        machine=machine,
        settings={"ranks": "1", "device": device},
        quantities=OVERHEAD,
        results=tuple(results),
        notes=OVERHEAD_NOTES,
    )
