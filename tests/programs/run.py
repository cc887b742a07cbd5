"""Runs programs of public code in plain Python and on ranks, and says how far their numbers are apart.

    python tests/programs/run.py --checkouts DIR [--ranks 2,3] [--plan zero2] [--write-docs] [WORD ...]

DIR holds the repositories as `owner/name`: clones that have the commits of list.tsv, or just files with the
same contents.
Words choose the programs that have one of them in their name. Each program is copied, with its stand-ins, so
nothing is written into the checkouts. What is compared is what `ronde verify` compares (batches, parameters
after each step, values read on the host, files), in double precision where the program lets it, and besides
every number that it prints. One line a program: whether the law holds, the largest relative difference of
parameters and values, that of printed numbers, and how the program ended (see tests/ends). `--write-docs`
puts it into RESULTS.md, where what has not been run since its line was changed is "not run".
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":
    # As in the tests: ranks share few cores, and threads change the order of sums.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.path.insert(0, str(Path(__file__).parents[1]))

from programs import page
from programs.listing import Program, read
from programs.outcome import Outcome, compare, figure
from programs.page import Row
from programs.standins import provide
from ronde.verify.runs import Job, Starter
from support.warm import WarmHost


def run(program: Program, checkouts: Path, *, ranks: int, plan: str, starter: Starter) -> Outcome:
    """Run one program of which nothing is missing."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, program.repository, program.path).parent
        script, arguments = lay(program, checkouts, folder)
        job = Job(script=script, arguments=tuple(arguments), steps=program.steps, plan=plan, directory=folder)
        return compare(program.name, job, ranks=ranks, starter=starter)


def lay(program: Program, checkouts: Path, folder: Path) -> tuple[str, Sequence[str]]:
    """Copy its files and stand-ins into a folder; the script there, and its arguments."""
    top = Path(program.path).parent
    for path in program.files():
        place = Path(os.path.normpath(folder / os.path.relpath(path, top)))
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="run only programs with one of these in their name")
    parser.add_argument("--checkouts", type=Path, required=True, help="folder of repositories, as owner/name")
    parser.add_argument("--ranks", type=_numbers, default=(2,), help="one number of ranks, or several: 2,3")
    parser.add_argument("--plan", default="ddp")
    parser.add_argument("--seconds", type=float, default=120, help="after which one run is killed")
    parser.add_argument("--write-docs", action="store_true", help="write the results into RESULTS.md")
    parser.add_argument("--not-run", action="store_true", help="only programs that the page calls not run")
    parser.add_argument("--verbose", action="store_true", help="the whole report of a program that is broken")
    arguments = parser.parse_args()
    listed = read()
    have = {(each.program, each.entry) for each in page.read() if each.ran != page.NOT_RUN}
    programs = [
        program
        for program in listed
        if not arguments.words or any(word in program.name for word in arguments.words)
        if not (arguments.not_run and (program.name, program.entry) in have)
    ]
    missing = {program.name: program.missing(arguments.checkouts) for program in programs}
    here = [program for program in programs if not missing[program.name]]
    right = 0
    with WarmHost(seconds=arguments.seconds) as host:
        for program in here:
            begun = time.monotonic()
            outcomes = {
                ranks: run(program, arguments.checkouts, ranks=ranks, plan=arguments.plan, starter=host.start)
                for ranks in arguments.ranks
            }
            right += all(each.gives_the_answer for each in outcomes.values())
            for ranks, outcome in outcomes.items():
                print(f"{program.name} on {ranks}: {outcome.line}", flush=True)
                if arguments.verbose and outcome.report and not outcome.gives_the_answer:
                    print(outcome.report, flush=True)
            print(f"[{time.monotonic() - begun:.0f} s]", flush=True)
            if arguments.write_docs:
                page.write(read(), [row(program, outcomes)])
    for name, why in missing.items():
        if why:
            print(f"missing: {name}: {why}")
    print(f"{len(here)} of {len(programs)} programs were there, {right} give plain Python's answer")
    return int(right < len(here))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def row(program: Program, outcomes: Mapping[int, Outcome]) -> Row:
    """The program's line in the page: of the outcomes by ranks, the worst."""
    told = next((each for each in outcomes.values() if not each.gives_the_answer), None)
    told = told or next(iter(outcomes.values()))
    return Row(
        program=program.name,
        entry=program.entry,
        ran=told.ran,
        ranks=", ".join(map(str, outcomes)),
        steps=str(told.steps or ""),
        worst=_largest(each.worst for each in outcomes.values()) + _of_plain(outcomes.values()),
        printed=_largest(each.printed for each in outcomes.values()),
        date=time.strftime("%Y-%m-%d"),
    )


def _of_plain(outcomes: Iterable[Outcome]) -> str:
    """The distance of plain Python from itself, where it was needed to judge that of ranks."""
    floors = [each.floor for each in outcomes if each.floor]
    return f" (plain Python from itself: {figure(max(floors))})" if floors else ""


def _largest(differences: Iterable[float | None]) -> str:
    return figure(max((each for each in differences if each is not None), default=None))


if __name__ == "__main__":
    sys.exit(main())
