"""Runs one row under some plans, in the interpreter that has its packages: `python -m trainers.trial ROW`."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

# Before torch is imported: as in the tests (see conftest.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from programs.outcome import Outcome, compare, figure
from programs.run import lay
from ronde.plan import expand
from ronde.verify.runs import Job, Starter
from support.warm import WarmHost
from trainers import table
from trainers.row import SCRIPTS, Row, read
from trainers.table import Found

__all__ = ["found", "run"]

# Every row ends by itself before.
_STEPS = 1000
_OFFLINE = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")
_SECONDS = 240
# What ronde says of a module that also returns a loss.
_LOSS = "an output without a batch axis depends on the batch"


def run(name: str, row: Row, *, ranks: int, plan: str, checkouts: Path | None, starter: Starter) -> Outcome:
    """Run a row in plain Python and on ranks."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "work")
        folder.mkdir()
        script, arguments = _script(row, folder, checkouts)
        if row.data:
            row.data(folder)
        job = Job(
            script=script,
            module=row.module,
            arguments=(*arguments, *row.arguments),
            steps=_STEPS,
            plan=plan,
            directory=folder,
            double=row.double,
        )
        return compare(name, job, ranks=ranks, starter=starter)


def _script(row: Row, folder: Path, checkouts: Path | None) -> tuple[str, tuple[str, ...]]:
    if row.module:
        return row.script, ()
    if row.source is None:
        shutil.copy(SCRIPTS / row.script, folder)
        return row.script, ()
    assert checkouts is not None
    script, arguments = lay(row.source, checkouts, folder)
    return script, tuple(arguments)


def found(name: str, row: Row, outcome: Outcome, *, ranks: int, plan: str) -> Found:
    """The line of the table."""
    end, how = _end(outcome, plan, ranks)
    return Found(
        row=name,
        plan=plan,
        end=end,
        how=how,
        ranks=str(ranks),
        steps=str(outcome.steps),
        dtype=outcome.dtype,
        worst=figure(outcome.worst),
        versions=row.versions,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    )


def _end(outcome: Outcome, plan: str, ranks: int) -> tuple[str, str]:
    """The end as a word, and what belongs to it."""
    if outcome.end is None or not outcome.gives_the_answer:
        said = re.sub(r"\s+", " ", outcome.ran)
        return ("refused" if said.startswith("refused") else "failed"), said
    sentences = outcome.end.sentences
    if outcome.end.end == "parts":
        if all(_LOSS in each for each in sentences if " runs in parts" in each):
            return "one piece but the loss", ""
        return "parts", outcome.ran.removeprefix("in parts (").removesuffix(")")
    if outcome.end.end == "replicated" and expand(plan).mesh.model_ranks == ranks:
        return ("replicated" if any("cuts nothing" in each for each in sentences) else "divided"), ""
    return outcome.end.end, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainers.trial", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plans", required=True)
    parser.add_argument("--checkouts", type=Path)
    parser.add_argument("--write", action="store_true", help="put what is found into the table")
    parser.add_argument("--verbose", action="store_true", help="the whole proof, and every note of the run")
    asked = parser.parse_args()
    row, differ = read(asked.name), False
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    with tempfile.TemporaryDirectory() as state, WarmHost(seconds=_SECONDS) as host:
        os.environ["XDG_STATE_HOME"] = state
        for plan in asked.plans.split(","):
            outcome = run(
                asked.name, row, ranks=asked.ranks, plan=plan, checkouts=asked.checkouts, starter=host.start
            )
            line = found(asked.name, row, outcome, ranks=asked.ranks, plan=plan)
            expected = row.expected.get(plan, "nothing")
            told = "" if line.end == expected else f" (expected {expected})"
            print(f"{asked.name} under {plan}: {outcome.line}{told}", flush=True)
            if asked.verbose:
                end = outcome.end
                print(outcome.report, *((end.modules, *end.sentences) if end else ()), sep="\n", flush=True)
            differ = differ or line.end != expected
            if asked.write:
                table.put(line)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
