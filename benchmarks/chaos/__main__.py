"""Run the cases: `python -m benchmarks.chaos [--cases NAMES] [--two-hosts]`.

The exit code is 1 where fewer than 95 % are right, a run hangs, or a process
is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from benchmarks.chaos.faults import CASES
from benchmarks.chaos.faults_of_hosts import CASES_OF_HOSTS
from benchmarks.chaos.place import MakePlace, Stubs
from benchmarks.chaos.report import are_right, report_of
from benchmarks.chaos.running import Found, run_case
from benchmarks.chaos.two_hosts import two_hosts
from benchmarks.report_options import add_options, say, show
from ronde.bench.machine import Machine
from ronde.testing.hosts import HostsUnavailable, Network

__all__ = ["main"]


def main() -> int:
    """Run the cases that are asked for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--cases", metavar="NAMES", default="", help="faults by name, separated by commas")
    parser.add_argument("--evidence", metavar="DIR", type=Path, help="folder for the evidence of each run")
    parser.add_argument("--two-hosts", action="store_true", help="place the last rank on another host")
    add_options(parser)
    asked = parser.parse_args()
    known = {each.name: each for each in (*CASES, *(CASES_OF_HOSTS if asked.two_hosts else ()))}
    names = [name.strip() for name in asked.cases.split(",")] if asked.cases else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"--cases: {', '.join(unknown)} not found; choose among {', '.join(known)}")
    if asked.evidence is not None and not asked.evidence.is_dir():
        parser.error(f"--evidence {asked.evidence} is not a folder; make it first")
    machine = Machine.here()
    place = _hosts() if asked.two_hosts else None
    results: list[Found] = []
    for name in names:
        results.append(run_case(known[name], os.environ, asked.evidence, at=place))
        found = results[-1]
        told = found.skipped or f"{'right' if found.right else 'WRONG'}: {found.cause or 'nothing'}"
        say(f"{name}: {told}, {found.seconds:.1f} s")
    show(report_of(machine, results), asked)
    return 0 if are_right(results) else 1


def _hosts() -> MakePlace:
    """Return hosts with a network of their own, or stubs where these are impossible."""
    try:
        with Network(1):
            return two_hosts
    except HostsUnavailable as why:
        say(f"both hosts are this one, without links between them: {why}")
        return lambda case, here: contextlib.nullcontext(Stubs())


if __name__ == "__main__":
    raise SystemExit(main())
