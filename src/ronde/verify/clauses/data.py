"""L1: the global batches, their sample ids and order."""

from __future__ import annotations

from collections.abc import Sequence

from ronde.verify.clauses.verdict import ClauseVerdict, verdict
from ronde.verify.record import RankRecord

__all__ = ["compare"]


def compare(plain: RankRecord, ranks: Sequence[RankRecord]) -> ClauseVerdict:
    divergence = next((text for each in ranks if (text := _first(plain, each))), None)
    compared = f"{len(plain.batches)} batches, {len(plain.ids)} index batches"
    return verdict("L1", "data", count=len(plain.batches), compared=compared, divergence=divergence)


def _first(plain: RankRecord, rank: RankRecord) -> str | None:
    # Prefetching workers draw indices ahead, so only those that both drew are compared.
    for number, (mine, reference) in enumerate(zip(rank.ids, plain.ids, strict=False), 1):
        if mine != reference:
            samples = f"samples {_cut(mine)}, in plain python {_cut(reference)}"
            return f"rank {rank.rank}, index batch {number}: {samples}"
    for number, (batch, expected) in enumerate(zip(rank.batches, plain.batches, strict=False), 1):
        if batch.fingerprints == expected.fingerprints:
            continue
        if len(batch.fingerprints) != len(expected.fingerprints):
            counts = f"{len(batch.fingerprints)} values, in plain python {len(expected.fingerprints)}"
            return f"rank {rank.rank}, batch {number}: {counts}"
        pairs = zip(batch.fingerprints, expected.fingerprints, strict=True)
        part, (mine, reference) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        return f"rank {rank.rank}, batch {number}, part {part}: {mine}, in plain python {reference}"
    if len(rank.batches) != len(plain.batches):
        return f"rank {rank.rank}: {len(rank.batches)} batches, in plain python {len(plain.batches)}"
    return None


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
