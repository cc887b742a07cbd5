"""Runs programs of public code in plain Python and on ranks, and says how far their numbers are apart.

    python tests/programs/run.py --checkouts DIR [--ranks 2] [--plan zero2] [WORD ...]

DIR holds the repositories as `owner/name`: clones that have the commits of list.tsv, or just files with the
same contents.
Words choose the programs that have one of them in their name. Each program is copied, with its stand-ins, so
nothing is written into the checkouts. What is compared is what `ronde verify` compares (batches, parameters
after each step, values read on the host, files), in double precision where the program lets it, and besides
every number that it prints. One line a program: whether the law holds, the largest relative difference of
parameters and values, that of printed numbers, and how the program ended (see tests/ends).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    # As in the tests: ranks share few cores, and threads change the order of sums.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.path.insert(0, str(Path(__file__).parents[1]))

from ends.end import End, finished
from programs.listing import Program, read
from programs.standins import provide
from ronde.errors import RondeError
from ronde.testing.warm import WarmHost
from ronde.trace.summary import RankSummary, read_summary
from ronde.verify.clauses.verdict import Status
from ronde.verify.proof import Proof, verify
from ronde.verify.report import to_text
from ronde.verify.runs import Job, Start, Starter

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_SMALLEST = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a program fared.

    Attributes:
        law: "holds", "rounding" (what differs differs less than plain Python from itself, see Proof.floor),
            "BROKEN", or what kept it from being run.
        worst: largest relative difference of parameters and values; None where there were none.
        printed: of printed numbers.
        steps: optimizer steps in plain Python.
        dtype: in what parameters were.
        end: see tests/ends; None where it was not run on ranks.
    """

    law: str
    worst: float | None = None
    printed: float | None = None
    steps: int = 0
    dtype: str = ""
    end: End | None = None
    report: str = ""

    @property
    def line(self) -> str:
        if self.end is None:
            return self.law
        numbers = f"largest difference {_figure(self.worst)}, printed {_figure(self.printed)}"
        return (
            f"{self.law}: {numbers}; {self.steps} steps in {self.dtype}; {self.end.end} ({self.end.modules})"
        )


class _Watched:
    """A starter that keeps what runs have printed, and the account of rank 0."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self.plain = ""
        self.ranks = ""
        self.summary: RankSummary | None = None

    def __call__(self, start: Start) -> int:
        code = self._starter(start)
        printed = (start.place / "stdout").read_text(errors="replace")
        if start.ranks is not None:
            self.ranks = printed
            self.summary = read_summary(start.place / "run" / "rank-0.summary.json")
        elif self.summary is None:  # what comes behind are twins of the plain run
            self.plain = printed
        return code


def run(program: Program, checkouts: Path, *, ranks: int, plan: str, starter: Starter) -> Outcome:
    """Run one program of which nothing is missing."""
    watched = _Watched(starter)
    with tempfile.TemporaryDirectory() as place:
        # Some levels deep: programs look for their data above their folder.
        folder = Path(place, "owner", "name", "folder")
        script, arguments = _lay(program, checkouts, folder)
        job = Job(script=script, arguments=tuple(arguments), steps=program.steps, plan=plan, directory=folder)
        try:
            proof = verify(job, ranks=ranks, starter=watched)
        except RondeError as error:
            return Outcome(law=str(error).strip().splitlines()[-1][:200])
    summary = watched.summary
    if summary is None:
        return Outcome(law="failed on ranks: " + (proof.failure.splitlines() or [""])[-1])
    differences = [each.worst for each in proof.verdicts if each.worst is not None]
    return Outcome(
        law="holds" if proof.holds else "rounding" if _is_rounding(proof) else "BROKEN",
        worst=max(differences, default=None),
        printed=printed_apart(watched.plain, watched.ranks),
        steps=proof.steps,
        dtype=proof.dtype,
        end=finished(program.name, summary.sharded, summary.notes),
        report=to_text(proof),
    )


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


def _lay(program: Program, checkouts: Path, folder: Path) -> tuple[str, Sequence[str]]:
    """Copy its files and stand-ins into a folder; the script there, and its arguments."""
    top = Path(program.path).parent
    for path in program.files():
        place = folder / os.path.relpath(path, top)
        place.parent.mkdir(parents=True, exist_ok=True)
        contents = program.contents(checkouts, path)
        assert contents is not None
        place.write_bytes(contents)
    for standin in program.standins:
        provide(standin, folder)
    words = program.words
    if words[:1] == ["-c"]:
        (folder / "called.py").write_text(words[1] + "\n")
        return "called.py", words[2:]
    return Path(program.path).name, words


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.1g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="run only programs with one of these in their name")
    parser.add_argument("--checkouts", type=Path, required=True, help="folder of repositories, as owner/name")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plan", default="ddp")
    parser.add_argument("--verbose", action="store_true", help="the whole report of a program that is broken")
    arguments = parser.parse_args()
    programs = [
        program
        for program in read()
        if not arguments.words or any(word in program.name for word in arguments.words)
    ]
    missing = {program.name: program.missing(arguments.checkouts) for program in programs}
    here = [program for program in programs if not missing[program.name]]
    broken = 0
    with WarmHost() as host:
        for program in here:
            begun = time.monotonic()
            outcome = run(
                program,
                arguments.checkouts,
                ranks=arguments.ranks,
                plan=arguments.plan,
                starter=host.start,
            )
            broken += outcome.law not in ("holds", "rounding")
            print(f"{program.name}: {outcome.line} [{time.monotonic() - begun:.0f} s]", flush=True)
            if arguments.verbose and outcome.law == "BROKEN":
                print(outcome.report, flush=True)
    for name, why in missing.items():
        if why:
            print(f"missing: {name}: {why}")
    print(
        f"{len(here)} of {len(programs)} programs were there, {len(here) - broken} give plain Python's answer"
    )
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
