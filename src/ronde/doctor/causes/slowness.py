"""Causes of a slow run, or of wrong numbers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from statistics import median

from ronde.doctor.stacks import inside, main_frames
from ronde.trace.evidence import Evidence, RankEvidence
from ronde.trace.explanation import Explanation
from ronde.trace.heartbeat import first_not_finite

__all__ = [
    "files_run_out",
    "fine",
    "last_arrivals",
    "not_finite",
    "oversubscribed",
    "slow_loader",
    "straggler",
]

# Share of the time that a script may wait for batches before the loader is called slow.
_MUCH_DATA = 0.3
# A straggler is last in this share of collectives, and later than the first rank by these seconds and this
# share of the interval.
_MOSTLY, _LATE_S, _LATE = 0.8, 0.005, 0.25
_FEWEST_MEETINGS = 8
# Share of the files that a process may open.
_NEARLY = 0.9
# Share of its time by which the others wait longer.
_WAITS_MORE = 0.15


def not_finite(evidence: Evidence) -> Explanation | None:
    """Explain gradients that were not finite on one rank before the sum."""
    first = first_not_finite({rank.rank: rank.not_finite for rank in evidence.ranks})
    if first is None or evidence.failure is not None:
        return None
    number, step, everywhere = first
    return Explanation(
        cause="not-finite",
        rank=None if everywhere else number,
        summary=f"gradients are not finite (NaN or infinite) since step {step}"
        + (", on all ranks at once" if everywhere else f", first on rank {number}"),
        evidence=tuple(
            f"rank {rank.rank}: since step {rank.not_finite}" for rank in evidence.ranks if rank.not_finite
        ),
        fix="look at what that rank's rows of the batch hold in that step"
        if not everywhere
        else "the parameters are not finite already: a smaller learning rate, clipping, or fp32",
    )


def oversubscribed(evidence: Evidence) -> Explanation | None:
    """Explain more computing threads than cores."""
    for place, host in enumerate(evidence.hosts):
        ranks = [rank for rank in evidence.ranks if rank.host == place]
        threads, cores = sum(rank.threads for rank in ranks), host.cores
        if cores < 1 or threads <= max(cores, len(ranks)):
            continue
        each = max(1, cores // len(ranks))
        return Explanation(
            cause="oversubscribed",
            rank=None,
            summary=f"{len(ranks)} ranks compute with {threads} threads on {cores} cores"
            + (f" of {host.name}" if host.name else ""),
            evidence=tuple(f"rank {rank.rank}: {rank.threads} threads" for rank in ranks),
            fix=f"leave OMP_NUM_THREADS and --threads out, or give --threads {each}",
        )
    return None


def files_run_out(evidence: Evidence) -> Explanation | None:
    """Explain a rank with nearly as many open files as allowed."""
    for rank in evidence.ranks:
        opened, most = rank.process.files, rank.process.most_files
        if most and opened > _NEARLY * most:
            return Explanation(
                cause="too-many-files",
                rank=rank.rank,
                summary=f"rank {rank.rank} has {opened} of {most} files open",
                evidence=(f"ls -l /proc/{rank.process.pid}/fd shows which",),
                fix="close what is opened in a loop; of loaders with many workers: "
                'torch.multiprocessing.set_sharing_strategy("file_system")',
            )
    return None


def slow_loader(evidence: Evidence) -> Explanation | None:
    """Explain a run that waits for batches much of the time."""
    shares = {rank.rank: _share(rank, "data") for rank in evidence.ranks}
    slow = {rank: share for rank, share in shares.items() if share > _MUCH_DATA}
    if not slow:
        return None
    rank = max(slow, key=lambda each: slow[each])
    others = [share for each, share in shares.items() if each != rank]
    alone = bool(others) and slow[rank] > 2 * max(others)
    return Explanation(
        cause="slow-loader",
        rank=rank if alone else None,
        summary=(f"rank {rank} waits" if alone else "ranks wait")
        + f" for batches in {slow[rank]:.0%} of the time",
        evidence=tuple(f"rank {each}: {share:.0%}" for each, share in sorted(shares.items())),
        fix=f"DataLoader(..., num_workers={_workers(evidence)}), or less to do for each sample",
    )


def straggler(evidence: Evidence) -> Explanation | None:
    """Explain a straggler: a rank that comes last, and late, nearly always."""
    waited = {each.rank: _share(each, "communication") for each in evidence.ranks if each.summary is not None}
    if len(waited) == len(evidence.ranks) > 1:
        rank = min(waited, key=lambda each: waited[each])
        least_of_others = min(share for each, share in waited.items() if each != rank)
        if least_of_others - waited[rank] < _WAITS_MORE:
            return None
        seen = ", ".join(f"rank {each} {share:.0%}" for each, share in sorted(waited.items()))
        return _straggler(evidence, rank, f"of its time each waited: {seen}")
    last, late, interval = last_arrivals(evidence)
    meetings = sum(last.values())
    if meetings < _FEWEST_MEETINGS:
        return None
    rank = max(last, key=lambda each: last[each])
    if last[rank] < _MOSTLY * meetings or late < max(_LATE_S, _LATE * interval):
        return None
    told = f"it came last to {last[rank]} of the last {meetings} meetings, {late * 1000:.0f} ms late"
    return _straggler(evidence, rank, told)


def _straggler(evidence: Evidence, rank: int, told: str) -> Explanation:
    found = evidence.rank(rank)
    loads = found is not None and _share(found, "data") > _MUCH_DATA
    return Explanation(
        cause="straggler",
        rank=rank,
        summary=f"the others wait for rank {rank}",
        evidence=(told,),
        fix="its loader is slow: see what it reads from"
        if loads
        else "see what else its cores or its device have to do, and how warm they are",
    )


def fine(evidence: Evidence) -> Explanation | None:
    """Explain a healthy run."""
    if evidence.failure is not None or evidence.reason != "asked":
        return None
    running = [rank for rank in evidence.ranks if rank.is_alive]
    ended = [rank for rank in evidence.ranks if rank.summary is not None]
    if running:
        steps = {rank.step for rank in running if rank.step >= 0}
        step = f", step {max(steps)}" if steps else ""
        return Explanation(cause="running", rank=None, summary=f"{len(running)} ranks run{step}", told=True)
    if len(ended) < len(evidence.ranks):
        return None
    return Explanation(cause="ended", rank=None, summary="all ranks came to the end of the script", told=True)


def last_arrivals(evidence: Evidence) -> tuple[Mapping[int, int], float, float]:
    """Return the lateness of each rank, and the time between two collectives.

    Ranks are compared with those of their host: clocks of several hosts differ by more than a millisecond.
    """
    met: dict[tuple[int, str, int], dict[int, float]] = {}
    of_host = Counter(rank.host for rank in evidence.ranks)
    for rank in evidence.ranks:
        for each in rank.collectives:
            if each.left is not None:
                met.setdefault((rank.host, each.group, each.number), {})[rank.rank] = each.entered
    whole = [ages for (host, _, _), ages in met.items() if len(ages) == of_host[host] > 1]
    last: dict[int, int] = {}
    late: list[float] = []
    for ages in whole:
        rank = min(ages, key=lambda each: ages[each])  # the youngest entry
        last[rank] = last.get(rank, 0) + 1
        late.append(max(ages.values()) - min(ages.values()))
    times = sorted(min(ages.values()) for ages in whole)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return last, median(late) if late else 0.0, sum(gaps) / len(gaps) if gaps else 0.0


def _workers(evidence: Evidence) -> int:
    """Return how many loader workers of each rank fit beside the other threads."""
    first = evidence.hosts[0]
    ranks = sum(rank.host == 0 for rank in evidence.ranks)
    return max(1, first.cores // max(1, ranks) - 1)


def _share(rank: RankEvidence, name: str) -> float:
    """Return a rank's share of time spent waiting for its loader."""
    if rank.summary is not None:
        found = rank.summary.get(name)
        return float(found) if isinstance(found, (int, float)) else 0.0
    return float(inside(main_frames(rank.stack), "torch/utils/data/dataloader.py")) if name == "data" else 0.0
