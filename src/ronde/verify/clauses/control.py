"""L4: every rank takes the branches that plain python takes."""

from __future__ import annotations

from collections.abc import Sequence

from ronde.verify.clauses.verdict import ClauseVerdict, verdict
from ronde.verify.record import RankRecord

__all__ = ["compare"]


def compare(
    plain: RankRecord, ranks: Sequence[RankRecord], *, plain_exit: int, ranks_exit: int
) -> ClauseVerdict:
    divergence: str | None = None
    for rank in ranks:
        divergence = divergence or _first(plain, rank)
    if divergence is None and plain_exit != ranks_exit:
        divergence = f"the run on ranks ended with exit code {ranks_exit}, plain python with {plain_exit}"
    compared = f"{len(plain.reads)} call sites, {len(plain.steps)} steps, exit codes"
    return verdict(
        "L4", "control", count=len(plain.reads) + len(plain.steps), compared=compared, divergence=divergence
    )


def _first(plain: RankRecord, rank: RankRecord) -> str | None:
    for number, (read, expected) in enumerate(zip(rank.reads, plain.reads, strict=False), 1):
        if (read.where, read.call) != (expected.where, expected.call):
            return (
                f"rank {rank.rank}, value {number}: {read.call} at {read.where}, "
                f"in plain python {expected.call} at {expected.where}"
            )
    if len(rank.reads) != len(plain.reads):
        longer = rank.reads if len(rank.reads) > len(plain.reads) else plain.reads
        extra = longer[min(len(rank.reads), len(plain.reads))]
        counts = f"{len(rank.reads)} values read, in plain python {len(plain.reads)}"
        return f"rank {rank.rank}: {counts}; the first that only one has: {extra.call} at {extra.where}"
    for number, (step, expected) in enumerate(zip(rank.steps, plain.steps, strict=False), 1):
        if step.optimizer != expected.optimizer:
            return f"rank {rank.rank}, step {number}: {step.optimizer}, in plain python {expected.optimizer}"
    if len(rank.steps) != len(plain.steps):
        return f"rank {rank.rank}: {len(rank.steps)} optimizer steps, in plain python {len(plain.steps)}"
    if rank.stopped != plain.stopped:
        return f"rank {rank.rank}: the script ended {'early' if plain.stopped else 'late'}"
    return None
