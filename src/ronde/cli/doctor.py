"""`ronde doctor`: diagnosis of hosts before a run, and of runs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ronde.cluster.linux import check_linux
from ronde.errors import UsageError

if TYPE_CHECKING:
    from ronde.cluster.host_list import HostSlots
    from ronde.doctor.finding import Finding

__all__ = ["doctor"]


def doctor(  # noqa: PLR0913 - one parameter per option
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="RUN_DIR", help="Directory of a run, under way or over.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Number of ranks to run on this host.", show_default="one per device"),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            "-H",
            metavar="HOST:N,...|N",
            help="Hosts and their ranks, all of which are examined, links included. A number: how "
            "many are to take part; this one alone is looked at.",
        ),
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hosts in a file, as for ronde run.")
    ] = None,
    script: Annotated[
        str, typer.Option(metavar="FILE", help="Script that must be the same on all hosts.")
    ] = "",
    logs: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Directory of logs that the run will use."),
    ] = None,
    ssh_port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="Port of the hosts' ssh servers.")
    ] = None,
    ssh_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Program to call in place of ssh, with a host and a shell line."
        ),
    ] = None,
    local_addr: Annotated[
        str | None,
        typer.Option(
            metavar="IP", help="Address by which other hosts reach this one; found by asking them if absent."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each rank.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Diagnose this host or other hosts before a run, or a run.

    The run may be under way or over. The exit code is 1 if something is wrong.
    """
    check_linux()
    if run_dir is not None:
        raise typer.Exit(_run(run_dir, as_json=json_))
    number = hosts if hosts is not None and hosts.isdecimal() else None
    named = None if number else hosts
    if named is None and hostfile is None:
        _check_hosts_are_named(script, logs, ssh_port, ssh_command, local_addr)
        findings = _here(ranks, threads, int(number or 1))
    else:
        findings = _everywhere(
            _slots(named, hostfile), ranks, threads, script, logs, ssh_port, ssh_command, local_addr
        )
    raise typer.Exit(_told(findings, as_json=json_))


def _run(run_dir: Path, *, as_json: bool) -> int:
    from ronde.doctor.run import examine

    evidence, found = examine(run_dir)
    if as_json:
        parts = {"explanation": dataclasses.asdict(found), "evidence": dataclasses.asdict(evidence)}
        print(json.dumps(parts, indent=1))
    else:
        print("\n".join(found.lines()))
    return int(found.cause not in ("running", "ended"))


def _here(ranks: int | None, threads: int | None, hosts: int) -> Sequence[Finding]:
    from ronde.doctor.preflight import examine

    return examine(os.environ, ranks=ranks, threads=threads, hosts=max(1, hosts))


def _slots(named: str | None, hostfile: Path | None) -> tuple[HostSlots, ...]:
    from ronde.cluster.host_list import parse_hosts, read_hostfile

    if hostfile is None:
        return parse_hosts(named or "")
    if named is not None:
        raise UsageError("-H and --hostfile both name the hosts; leave one of them out [R134]")
    return read_hostfile(hostfile)


def _everywhere(
    slots: tuple[HostSlots, ...],
    ranks: int | None,
    threads: int | None,
    script: str,
    logs: Path | None,
    port: int | None,
    command: str | None,
    address: str | None,
) -> Sequence[Finding]:
    """Return the findings of the agents on the hosts."""
    from ronde.cli.hosts_options import hosts_of
    from ronde.cluster.host_list import ranks_of_hosts
    from ronde.doctor.hosts import examine_hosts
    from ronde.launch.placement import Placement

    hosts = hosts_of(Placement(), ranks_of_hosts(slots, ranks), port, command, (), address)
    assert hosts is not None
    return examine_hosts(
        hosts, os.environ, script=script, run_dir=str(logs.absolute()) if logs else "", threads=threads
    )


def _check_hosts_are_named(*given: object) -> None:
    if any(given):
        raise UsageError(
            "--script, --run-dir, --ssh-port, --ssh-command and --local-addr are about other hosts, and none "
            "is named; add -H host1:2,host2:2 [R612]"
        )


def _told(findings: Sequence[Finding], *, as_json: bool) -> int:
    from ronde.doctor.preflight import lines

    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in findings], indent=1))
    else:
        print("\n".join(lines(findings)))
    return int(any(each.level == "wrong" for each in findings))
