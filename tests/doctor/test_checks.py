"""Checks of a host before a run: each judges plain facts."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ronde.doctor import preflight
from ronde.doctor.asked import PreflightRequest
from ronde.doctor.checks import (
    caches,
    clock,
    devices,
    disk,
    host_name,
    limits,
    memory,
    network_card,
    orphans,
    ports,
    shared_memory,
    threads,
    versions,
)
from ronde.doctor.finding import Finding
from ronde.launch.rank_environment import RUN_ID_KEY

MIB = 1 << 20


def level(finding: Finding) -> str:
    assert finding.fix or finding.level == "good" or finding.check == "clock", finding
    return finding.level


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (shared_memory.judge(64 * MIB, 64 * MIB, 2), "wrong"),
        (shared_memory.judge(0, 0, 2), "wrong"),
        (shared_memory.judge(400 * MIB, 400 * MIB, 2), "note"),
        (shared_memory.judge(8000 * MIB, 8000 * MIB, 2), "good"),
        (limits.judge_files(128, 4096), "wrong"),
        (limits.judge_files(300, 4096), "note"),
        (limits.judge_files(float("inf"), float("inf")), "good"),
        (limits.judge_processes(200, 190, 2), "wrong"),
        (limits.judge_processes(200, 100, 2), "note"),
        (limits.judge_processes(float("inf"), 0, 64), "good"),
        (host_name.judge("node1", {"127.0.1.1"}, 2), "wrong"),
        (host_name.judge("node1", {"127.0.1.1"}, 1), "note"),
        (host_name.judge("node1", {"10.0.0.5", "127.0.1.1"}, 2), "good"),
        (host_name.judge("node1", set(), 2), "wrong"),
        (network_card.judge(["eth0"], [], {}), "good"),
        (network_card.judge(["eth0", "docker0"], [], {}), "good"),
        (network_card.judge(["eth0", "eth1"], [], {}), "note"),
        (network_card.judge(["eth0"], [], {"GLOO_SOCKET_IFNAME": "^docker0"}), "wrong"),
        (network_card.judge(["eth0"], [], {"NCCL_SOCKET_IFNAME": "^docker0"}), "good"),
        (network_card.judge(["eth0"], [], {"NCCL_SOCKET_IFNAME": "ib0"}), "wrong"),
        (network_card.judge(["eth0"], ["mlx5_0"], {"NCCL_IB_DISABLE": "1"}), "note"),
        (ports.judge(29500, errno.EADDRINUSE, "nginx (process 7)", 28000), "wrong"),
        (ports.judge(80, errno.EACCES, "", 28000), "wrong"),
        (ports.judge(0, 0, "", 100), "note"),
        (ports.judge(29500, 0, "", 28000), "good"),
        (threads.judge(2, None, 8, by_variable=False), "good"),
        (threads.judge(16, None, 8, by_variable=False), "note"),
        (threads.judge(2, 16, 8, by_variable=True), "wrong"),
        (threads.judge(2, 1, 8, by_variable=True), "note"),
        (threads.judge(2, 4, 8, by_variable=False), "good"),
        (orphans.judge({}), "good"),
        (orphans.judge({"20260101-000000-abcdef": [12, 13]}), "wrong"),
        (disk.judge(Path("/runs"), 10 * MIB, True), "wrong"),
        (disk.judge(Path("/runs"), 500 * MIB, True), "note"),
        (disk.judge(Path("/runs"), 50_000 * MIB, True), "good"),
        (disk.judge(Path("/runs"), 50_000 * MIB, False), "note"),
        (versions.judge("3.11", "none", "torch is missing", None), "wrong"),
        (versions.judge("3.11", "9.9", "", "newer than tried"), "note"),
        (versions.judge("3.11", "2.13", "", None), "good"),
        (caches.judge(True, False, ""), "note"),
        (caches.judge(True, False, "/readonly"), "wrong"),
        (caches.judge(False, False, ""), "good"),
        (memory.judge(4, 500 * MIB, None), "wrong"),
        (memory.judge(1, 8000 * MIB, 100 * MIB), "wrong"),
        (memory.judge(4, 8000 * MIB, None), "good"),
        (clock.judge(5), "note"),
        (clock.judge(0), "good"),
        (devices.judge(4, True, 2), "wrong"),
        (devices.judge(2, True, 2), "good"),
        (devices.judge(2, False, 0), "good"),
    ],
)
def test_a_check_judges(finding: Finding, expected: str) -> None:
    assert level(finding) == expected, finding


def test_all_checks_run_here() -> None:
    findings = preflight.examine(os.environ, ranks=2, threads=None)
    assert len({each.check for each in findings}) == len(preflight.CHECKS)
    text = "\n".join(preflight.lines(findings))
    assert all(each.check in text for each in findings)
    told = (Path(__file__).parents[2] / "docs" / "reference" / "doctor.md").read_text()
    assert [each.check for each in findings if not re.search(rf"`{each.check}`", told)] == []


def test_a_taken_port_is_found_with_its_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = ports.check(PreflightRequest(ranks=1, threads=None, environment={"MASTER_PORT": str(port)}))
        assert found.level == "wrong"
        assert f"process {os.getpid()}" in found.summary


def test_the_limit_of_a_control_group_is_what_it_leaves(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/1\n")
    group = tmp_path / "sys/fs/cgroup/job/1"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    assert memory.group_limit(tmp_path) is None
    (group.parent / "memory.max").write_text("1000\n")
    (group.parent / "memory.current").write_text("300\n")
    assert memory.group_limit(tmp_path) == 700


def test_a_process_whose_launcher_is_gone_is_an_orphan(tmp_path: Path) -> None:
    """A shell starts it and ends, so that init, or a reaper of ours, becomes its parent."""
    run = "20260101-000000-abcdef"
    proc = tmp_path / "proc"
    for pid, parent in ((10, 1), (11, 10)):
        folder = proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "environ").write_bytes(f"A=1\0{RUN_ID_KEY}={run}\0".encode())
        (folder / "stat").write_text(f"{pid} (python (x)) S {parent} 0 0")
    assert orphans.orphans(proc) == {run: [10, 11]}
    (proc / "10" / "stat").write_text("10 (python) S 5 0 0")
    assert orphans.orphans(proc) == {}


def test_the_command_imports_no_torch() -> None:
    code = (
        "import os, sys\nfrom ronde.doctor import preflight\n"
        "preflight.examine(os.environ, ranks=1, threads=None)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
