"""What was made of the evidence: the cause in one word and in a sentence, the rank, and what to do."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ronde.trace.evidence import evidence_path

__all__ = ["Explanation", "read_explanation", "write_explanation"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One cause.

    Attributes:
        cause: its name, as `docs/doctor.md` lists it; "unknown" where the evidence is thin.
        rank: that brought it about; None where that is no single one, or not known.
        summary: a sentence without a full stop.
        evidence: what it rests on, a line each.
        fix: what to do.
        told: the report of a failure says as much by itself.
        host: name of the host that it is about, where there are several; "" for none.
    """

    cause: str
    rank: int | None
    summary: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    told: bool = False
    host: str = ""

    def lines(self) -> Sequence[str]:
        """As a user reads it."""
        fix = [f"to mend it: {self.fix}"] if self.fix else []
        placed = self.host and self.rank is not None and self.host not in self.summary
        where = [f"  rank {self.rank} is on {self.host}"] if placed else []
        return [f"cause: {self.summary}", *(f"  {line}" for line in self.evidence), *where, *fix]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def write_explanation(explanation: Explanation, run_directory: Path) -> None:
    """Put it beside the evidence; a full disk is no matter here."""
    path = evidence_path(run_directory, "explanation")
    try:
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(explanation.to_json(), encoding="utf-8")
        os.rename(unfinished, path)
    except OSError:
        return


def read_explanation(run_directory: Path) -> Explanation | None:
    """What was written there, None where nothing was."""
    try:
        fields = json.loads(evidence_path(run_directory, "explanation").read_text(encoding="utf-8"))
        return Explanation(**{**fields, "evidence": tuple(fields["evidence"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
