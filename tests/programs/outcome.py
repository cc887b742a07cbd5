"""How a job of other people's code fares on ranks beside plain Python, by `ronde verify`."""

from __future__ import annotations

import dataclasses
import re

from ends.end import End, finished
from ronde.errors import RondeError
from ronde.trace.summary import RankSummary, read_summary
from ronde.verify.clauses.verdict import Status
from ronde.verify.proof import Proof, verify
from ronde.verify.report import to_text
from ronde.verify.runs import Job, Start, Starter
from support.warm import TOO_LONG

__all__ = ["Outcome", "compare", "figure", "printed_apart"]

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_SMALLEST = 1e-12
_LONGEST = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a program fared.

    Attributes:
        law: "holds", "rounding" (what differs differs less than plain Python from itself, see Proof.floor),
            "BROKEN", or the sentence that tells why there is nothing to compare.
        worst: largest relative difference of parameters and values; None where there were none.
        printed: of printed numbers.
        floor: how far plain Python, changed by rounding alone, lies from itself; None where nobody asked.
        steps: optimizer steps in plain Python.
        dtype: in what parameters were.
        end: see tests/ends; None where it was not run on ranks.
    """

    law: str
    worst: float | None = None
    printed: float | None = None
    floor: float | None = None
    steps: int = 0
    dtype: str = ""
    end: End | None = None
    report: str = ""

    @property
    def gives_the_answer(self) -> bool:
        return self.law in ("holds", "rounding")

    @property
    def ran(self) -> str:
        """How it ran, in the words of the page."""
        if self.end is None:
            return self.law.replace("|", "/")
        parts = [each.partition(":")[0] for each in self.end.modules.split(", ") if "parts" in each]
        how = f"in parts ({', '.join(parts)})" if parts else self.end.end
        return how if self.gives_the_answer else f"{self.law}: {how}"

    @property
    def line(self) -> str:
        numbers = f"largest difference {figure(self.worst)}, printed {figure(self.printed)}"
        ran = f"{numbers}; {self.steps} steps in {self.dtype}; {self.ran}"
        return f"{self.law}: {ran}" if self.end else self.law


class _Watched:
    """A starter that keeps what runs have printed, and the account of rank 0."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self.plain = ""
        self.ranks = ""
        self.summary: RankSummary | None = None
        self.in_time = True

    def __call__(self, start: Start) -> int:
        code = self._starter(start)
        printed = (start.place / "stdout").read_text(errors="replace")
        if start.ranks is not None:
            self.ranks = printed
            self.in_time = code != TOO_LONG
            self.summary = read_summary(start.place / "run" / "rank-0.summary.json")
        elif self.summary is None:  # what comes behind are twins of the plain run
            self.plain = printed
        return code


def compare(name: str, job: Job, *, ranks: int, starter: Starter) -> Outcome:
    """Run a job in plain Python and on ranks; `name` is what its end is called."""
    watched = _Watched(starter)
    try:
        proof = verify(job, ranks=ranks, starter=watched)
    except RondeError as error:
        return Outcome(law=_kept_from(str(error)))
    summary = watched.summary
    if not watched.in_time:
        return Outcome(law="took too long on ranks, or hangs there")
    if proof.failure or summary is None:
        last = (proof.failure.splitlines() or [""])[-1]
        return Outcome(law=f"failed on ranks: {last}"[:_LONGEST], report=to_text(proof))
    differences = [each.worst for each in proof.verdicts if each.worst is not None]
    return Outcome(
        law="holds" if proof.holds else "rounding" if _is_rounding(proof) else "BROKEN",
        worst=max(differences, default=None),
        printed=printed_apart(watched.plain, watched.ranks),
        floor=proof.floor,
        steps=proof.steps,
        dtype=proof.dtype,
        end=finished(name, summary.sharded, summary.notes),
        report=to_text(proof),
    )


def _kept_from(error: str) -> str:
    """Why there is nothing to compare, from the error of `verify`."""
    what, last = error.strip().splitlines()[0], error.strip().splitlines()[-1]
    for words, name in (
        ("does not repeat itself", "plain Python does not repeat itself"),
        (f"exit code {TOO_LONG}", "plain Python took too long"),
        ("nothing to compare: ", f"refused: {what.partition('nothing to compare: ')[2]}"),
    ):
        if words in what:
            return name[:_LONGEST]
    return f"fails in plain Python: {last}"[:_LONGEST]


def _is_rounding(proof: Proof) -> bool:
    """Whether every clause that seems broken is so by less than twins of the plain run lie apart."""
    broken = [each.worst for each in proof.verdicts if each.status is Status.broken]
    floor = proof.floor or 0.0
    return not proof.failure and all(worst is not None and worst <= floor for worst in broken)


def printed_apart(one: str, other: str) -> float | None:
    """The largest relative difference of numbers at the same place; infinite where the words differ."""
    if _NUMBER.sub("", one).split() != _NUMBER.sub("", other).split():
        return float("inf")
    pairs = [(float(a), float(b)) for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=False)]
    return max((abs(a - b) / max(abs(a), abs(b), _SMALLEST) for a, b in pairs), default=None)


def figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.1g}"
