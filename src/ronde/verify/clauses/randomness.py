"""L6: random draws of the script, by the generators' states after every step."""

from __future__ import annotations

from collections.abc import Sequence

from ronde.verify.clauses.verdict import ClauseVerdict, verdict
from ronde.verify.record import RankRecord

__all__ = ["compare"]


def compare(plain: RankRecord, ranks: Sequence[RankRecord]) -> ClauseVerdict:
    divergence: str | None = None
    for rank in ranks:
        for number, step in enumerate(rank.steps):
            for name, state in step.random.items():
                if number >= len(plain.steps) or state == plain.steps[number].random[name]:
                    continue
                where = f"rank {rank.rank}, after step {step.step}"
                divergence = divergence or f"{where}: {name}'s generator is not where that of plain python is"
    count = len(plain.steps)
    compared = f"3 generators after {count} steps"
    return verdict("L6", "randomness", count=count, compared=compared, divergence=divergence)
