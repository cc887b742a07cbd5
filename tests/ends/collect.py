"""Runs scripts on two ranks under ddp, one after another, and tells how each ends.

Hazards run in the processes of a pool, beside a plain run that says whether the answers are right; scripts
are run by a host that has imported torch, and whether their answers are right is what test_parity.py and
test_public.py ask.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ends.end import End, failed, finished, refused
from hazards.every import HAZARDS
from hazards.harness import outcome
from packages import missing
from ronde.testing.run_ranks import Rank, RankError
from ronde.trace.summary import read_summary
from ronde.verify.runs import Job, Starter, run_on_ranks

__all__ = ["Collector", "names"]

TESTS = Path(__file__).parents[1]
FOLDERS = {"parity": TESTS / "scripts", "public": TESTS / "public"}
RANKS = 2
# Every script of the lists ends before.
STEPS = 1000


def names() -> Iterator[str]:
    """Every script, the quick ones first."""
    for room, hazards in HAZARDS.items():
        yield from (f"hazards/{room}/{name}" for name in hazards)
    for folder, path in FOLDERS.items():
        yield from (f"{folder}/{script.stem}" for script in sorted(path.glob("*.py")))


@dataclasses.dataclass(frozen=True, slots=True)
class Collector:
    """Finds ends.

    Attributes:
        ranks: `RankPool.run` of a pool of two, or like it.
        start: starts the processes of a script.
    """

    ranks: Callable[..., list[Any]]
    start: Starter

    def end(self, name: str) -> End | None:
        """How the script ends; None where a package that it needs is not installed."""
        folder, _, rest = name.partition("/")
        if folder == "hazards":
            return self._end_of_hazard(name, *rest.split("/", 1))
        script = FOLDERS[folder] / f"{rest}.py"
        return None if missing(script) else self._end_of_script(name, script)

    def _end_of_hazard(self, name: str, room: str, hazard: str) -> End:
        try:
            ends = self.ranks(_end_on_a_rank, name, room, hazard)
        except (RankError, TimeoutError) as error:
            return failed(name, _last_line(str(error)))
        return next((end for end in ends if end.end == "wrong"), ends[0])

    def _end_of_script(self, name: str, script: Path) -> End:
        job = Job(script=script.name, steps=STEPS, directory=script.parent)
        with tempfile.TemporaryDirectory() as place:
            run = run_on_ranks(job, Path(place) / "ranks", ranks=RANKS, starter=self.start)
            summary = read_summary(Path(place) / "ranks" / "run" / "rank-0.summary.json")
        if run.exit_code or summary is None:
            told = [line for line in run.stderr.splitlines() if re.match(r"ronde: error[:\[]", line)]
            return refused(name, told[0]) if told else failed(name, _last_line(run.stderr))
        return finished(name, summary.sharded, summary.notes)


def _end_on_a_rank(rank: Rank, name: str, room: str, hazard: str) -> End:
    found = outcome(rank, HAZARDS[room][hazard])
    if found.refusal:
        return refused(name, found.refusal)
    return finished(name, found.cut, found.told, right=not found.problems)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "without a word")
