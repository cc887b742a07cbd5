"""`ronde doctor`: what is wrong with this host, or with a run."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ronde.cluster.linux import check_linux

__all__ = ["doctor"]


def doctor(
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="RUN_DIR", help="Of a run that goes on, or has ended.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="How many ranks are to run here.", show_default="one per device")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="That each rank is to compute with.")] = None,
    hosts: Annotated[int, typer.Option(min=1, help="How many hosts are to take part.")] = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print everything that was found as JSON.")] = False,
) -> None:
    """Say what is wrong: with this host before a run, or with a run, during it and after.

    The exit code is 1 where something is.
    """
    check_linux()
    if run_dir is not None:
        raise typer.Exit(_run(run_dir, as_json=json_))
    raise typer.Exit(_host(ranks, threads, hosts, as_json=json_))


def _run(run_dir: Path, *, as_json: bool) -> int:
    from ronde.doctor.run import examine

    evidence, found = examine(run_dir)
    if as_json:
        parts = {"explanation": dataclasses.asdict(found), "evidence": dataclasses.asdict(evidence)}
        print(json.dumps(parts, indent=1))
    else:
        print("\n".join(found.lines()))
    return int(found.cause not in ("running", "ended"))


def _host(ranks: int | None, threads: int | None, hosts: int, *, as_json: bool) -> int:
    from ronde.doctor.preflight import examine, lines

    findings = examine(os.environ, ranks=ranks, threads=threads, hosts=hosts)
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in findings], indent=1))
    else:
        print("\n".join(lines(findings)))
    return int(any(each.level == "wrong" for each in findings))
