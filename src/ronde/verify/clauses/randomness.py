"""L6: the random draws of the script, by the state of the generators after every step."""

from __future__ import annotations

from collections.abc import Sequence

from ronde.verify.clauses.verdict import Verdict, verdict
from ronde.verify.record import RankRecord

__all__ = ["compare"]


def compare(plain: RankRecord, ranks: Sequence[RankRecord], *, model_draws_alike: bool = True) -> Verdict:
    """With `model_draws_alike` false (`rng=per-rank`) torch's generator is compared among ranks only."""
    divergence: str | None = None
    for rank in ranks:
        for number, step in enumerate(rank.steps):
            for name, state in step.random.items():
                of_plain = name != "torch" or model_draws_alike
                reference = plain if of_plain else ranks[0]
                if number >= len(reference.steps) or state == reference.steps[number].random[name]:
                    continue
                other = "plain python" if of_plain else "rank 0"
                where = f"rank {rank.rank}, after step {step.step}"
                divergence = divergence or f"{where}: {name}'s generator is not where that of {other} is"
    count = len(plain.steps)
    compared = f"3 generators after {count} steps"
    return verdict("L6", "randomness", count=count, compared=compared, divergence=divergence)
