"""Explanation of a run's end: cause, rank, evidence, and fix."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from ronde.trace.evidence import evidence_path
from ronde.trace.whole_file import replace_file

__all__ = ["Explanation", "read_explanation", "write_explanation"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A cause of failure or stall.

    Attributes:
        cause: its name, as `docs/reference/doctor.md` lists it; "unknown" without enough evidence.
        rank: rank that caused it; None for several, or if unknown.
        summary: a sentence without a full stop.
        evidence: lines of evidence for it.
        fix: action for the user.
        told: whether the report of a failure contains the same anyway.
        host: name of the host concerned, if there are several; "" for none.
    """

    cause: str
    rank: int | None
    summary: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    told: bool = False
    host: str = ""

    def lines(self) -> Sequence[str]:
        """Format for a user, as lines."""
        fix = [f"fix: {self.fix}"] if self.fix else []
        placed = self.host and self.rank is not None and self.host not in self.summary
        where = [f"  rank {self.rank} is on {self.host}"] if placed else []
        return [f"cause: {self.summary}", *(f"  {line}" for line in self.evidence), *where, *fix]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def write_explanation(explanation: Explanation, run_directory: Path) -> None:
    """Write the explanation beside the evidence. A full disk is ignored."""
    path = evidence_path(run_directory, "explanation")
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        replace_file(path, explanation.to_json())


def read_explanation(run_directory: Path, name: str = "explanation") -> Explanation | None:
    """Read an explanation by its name; None if it was never written."""
    try:
        fields = json.loads(evidence_path(run_directory, name).read_text(encoding="utf-8"))
        return Explanation(**{**fields, "evidence": tuple(fields["evidence"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
