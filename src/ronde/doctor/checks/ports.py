"""Check of the ports at which ranks meet."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "judge", "owner"]

CHECK = "port"
_LEAST_PORTS = 1000


def check(asked: PreflightRequest) -> Finding:
    """Listen on MASTER_PORT where it is set, else on any."""
    wanted = asked.environment.get("MASTER_PORT", "")
    port = int(wanted) if wanted.isdecimal() else 0
    problem = 0
    with socket.socket() as listener:
        try:
            listener.bind(("0.0.0.0", port))
        except OSError as error:
            problem = error.errno or errno.EINVAL
    return judge(port, problem, owner(port) if problem == errno.EADDRINUSE else "", _free_range())


def judge(port: int, problem: int, taken_by: str, ephemeral: int) -> Finding:
    """Judge by the attempt to listen, and the number of ephemeral ports."""
    if problem == errno.EADDRINUSE:
        by = f" by {taken_by}" if taken_by else ""
        return Finding(
            check=CHECK,
            level="wrong",
            summary=f"MASTER_PORT={port} is taken{by}",
            fix="end that process, or choose another MASTER_PORT",
        )
    if problem:
        return Finding(
            check=CHECK,
            level="wrong",
            summary=f"this process may not listen on port {port} ({os.strerror(problem)})",
            fix="choose a port above 1024, or leave MASTER_PORT out",
        )
    if 0 <= ephemeral < _LEAST_PORTS:
        return Finding(
            check=CHECK,
            level="note",
            summary=f"only {ephemeral} ports are handed out",
            fix="sysctl net.ipv4.ip_local_port_range='32768 60999'",
        )
    return Finding(check=CHECK, level="good", summary=f"port {port} is free" if port else "ports are free")


def owner(port: int, proc: Path = Path("/proc")) -> str:
    """Return the process that listens there, "name (process 12)"; "" if unknown."""
    inodes = set(_listening(proc / "net/tcp", port)) | set(_listening(proc / "net/tcp6", port))
    marks = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdigit, os.listdir(proc) if marks else ()):
        with contextlib.suppress(OSError):
            for handle in os.listdir(proc / pid / "fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(proc / pid / "fd" / handle) in marks:
                        return f"{(proc / pid / 'comm').read_text().strip()} (process {pid})"
    return ""


def _listening(table: Path, port: int) -> list[str]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def _free_range() -> int:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return -1
    return int(high) - int(low) + 1
