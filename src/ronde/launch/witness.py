"""Freezes what is known when a run stalls or fails, before any rank is ended, and has it explained.

The files lie in `RUN_DIR/evidence`: `stall.json`, `failure.json`, stacks as texts, and `explanation.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ronde.launch.failure_report import RankFailure
from ronde.launch.gathering import Gathering
from ronde.trace.evidence import Evidence, Failure, write_evidence
from ronde.trace.explanation import Explanation, write_explanation
from ronde.trace.run_directory import RunDirectory

__all__ = ["Explain", "Witness"]

Explain = Callable[[Evidence], Explanation]


class Witness:
    """Of one run.

    Args:
        explain: judges evidence; None: it is only kept.
    """

    def __init__(self, directory: RunDirectory, gathering: Gathering, explain: Explain | None) -> None:
        self._directory = directory
        self._gathering = gathering
        self._explain = explain
        self._stall: Explanation | None = None
        self._frozen: Evidence | None = None

    def stalled(self) -> tuple[Evidence, Explanation | None]:
        """Ranks wait for one that does not come."""
        evidence = self._gathering.gather("stall")
        write_evidence(evidence)
        self._stall = self._explained(evidence)
        return evidence, self._stall

    def failed(self, codes: Mapping[int, int]) -> None:
        """The first rank has ended, or is about to; the others are as they were.

        Args:
            codes: of ranks that have ended, as `subprocess` has them.
        """
        if self._directory.path.exists():
            self._frozen = self._gathering.gather("failure", codes=codes)
            write_evidence(self._frozen)

    def conclude(self, codes: Mapping[int, int], failure: RankFailure, said: str) -> Explanation | None:
        """What came of it, when all ranks are gone; None where nobody explains."""
        if self._frozen is None:
            return None
        first = Failure(rank=failure.rank, kind=failure.kind, exit_code=failure.exit_code)
        evidence = self._gathering.completed(self._frozen, codes, first, said)
        write_evidence(evidence)
        found = self._explained(evidence)
        # What was seen while ranks still waited says more than how they were ended in the end.
        waited = first.kind == "standstill" or (found is not None and found.cause in ("unknown", "peer-lost"))
        if self._stall is None or not waited:
            return found
        write_explanation(self._stall, self._directory.path)
        return self._stall

    def _explained(self, evidence: Evidence) -> Explanation | None:
        if self._explain is None:
            return None
        explanation = self._explain(evidence)
        write_explanation(explanation, self._directory.path)
        return explanation
