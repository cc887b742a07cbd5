"""Run the cases: `python -m benchmarks.chaos [--cases NAMES] [--two-hosts]`.

It prints a table in Markdown. The exit code is 1 where fewer than 95 % are right, a run hangs, or a process
is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from benchmarks.chaos.faults import CASES
from benchmarks.chaos.faults_of_hosts import CASES_OF_HOSTS
from benchmarks.chaos.place import MakePlace, Stubs
from benchmarks.chaos.report import ChaosReport, table
from benchmarks.chaos.running import Found, run_case
from benchmarks.chaos.two_hosts import two_hosts
from ronde.bench.machine import Machine
from ronde.testing.hosts import HostsUnavailable, Network

__all__ = ["main"]


def main() -> int:
    """Run the cases that are asked for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--cases", metavar="NAMES", default="", help="faults by name, separated by commas")
    parser.add_argument("--evidence", metavar="DIR", type=Path, help="folder for the evidence of each run")
    parser.add_argument("--two-hosts", action="store_true", help="place the last rank on another host")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report to this file")
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
        _say(results[-1])
    report = ChaosReport(machine=machine, results=tuple(results))
    if asked.json is not None:
        asked.json.write_text(report.to_json())
    print(table(report))
    return 0 if report.is_right else 1


def _hosts() -> MakePlace:
    """Return hosts with a network of their own, or stubs where these are impossible."""
    try:
        with Network(1):
            return two_hosts
    except HostsUnavailable as why:
        print(f"both hosts are this one, without links between them: {why}", file=sys.stderr)
        return lambda case, here: contextlib.nullcontext(Stubs())


def _say(found: Found) -> None:
    told = found.skipped or f"{'right' if found.right else 'WRONG'}: {found.cause or 'nothing'}"
    print(f"{found.name}: {told}, {found.seconds:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
