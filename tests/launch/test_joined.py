"""Where ranks meet that somebody else has started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ronde.cluster.environment import ClusterEnvironment
from ronde.errors import LaunchError
from ronde.launch import external_launch
from ronde.launch.external_launch import find_store
from ronde.launch.launching_process import launching_process


def place(rank: int, address: str = "", port: int = 0, **changes: Any) -> ClusterEnvironment:
    fields = {"local_rank": 0, "local_world_size": 1, "run_id": "x", "restart_count": 0, "agent_store": False}
    where = {"master_address": address, "master_port": port, "launcher": "mpirun of MPICH"}
    return ClusterEnvironment(**{"rank": rank, "world_size": 2, **fields, **where, **changes})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ports at which a store would have been started."""
    ports: list[int] = []
    monkeypatch.setattr(
        external_launch, "start_store", lambda listener, *_, **__: ports.append(listener.getsockname()[1])
    )
    return ports


def test_rank_0_leaves_its_address_where_others_find_it(tmp_path: Path, started: list[int]) -> None:
    meeting = tmp_path / "meeting"
    address, port = find_store(place(0), meeting, tmp_path / "log")
    assert started == [port]
    assert find_store(place(1), meeting, tmp_path / "log") == (address, port)
    assert len(started) == 1


def test_it_is_known_where(tmp_path: Path, started: list[int]) -> None:
    assert find_store(place(1, "node1", 4000), tmp_path / "m", tmp_path / "log") == ("node1", 4000)
    assert find_store(place(1, "a", 5, agent_store=True), tmp_path / "m", tmp_path / "log") == ("a", 5)
    assert started == []
    assert list(tmp_path.iterdir()) == []


def test_refused(tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match=r"MASTER_ADDR=192\.0\.2\.1 must be the host of rank 0, which is"):
        find_store(place(0, "192.0.2.1", 4000), tmp_path / "m", tmp_path / "log")
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            LaunchError, match=rf"port {port}, where .* cannot be opened \(Address already in use\)"
        ):
            find_store(place(0, "127.0.0.1", port), tmp_path / "m", tmp_path / "log")
    monkeypatch.setattr(external_launch, "_MEETING_S", 0.0)
    with pytest.raises(
        LaunchError, match=r"does not tell rank 1 on .* is not shared with it; pass MASTER_ADDR"
    ):
        find_store(place(1), tmp_path / "m", tmp_path / "log")
    assert started == []


def test_scripts_between_the_launcher_and_a_rank_are_passed_over(tmp_path: Path) -> None:
    """By the launcher's number the ranks of one job on a host find each other."""
    launcher = tmp_path / "mpirun"
    launcher.symlink_to("/bin/sh")
    code = "from ronde.launch.launching_process import *; import os; print(launching_process(os.getppid()))"
    ask = f"{sys.executable} -c '{code}'"
    words = [str(launcher), "-c", f'echo $$; sh -c "sh -c \\"{ask}; true\\"; true"; true']
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    number, found = done.stdout.split()
    assert found == number
    assert launching_process(os.getpid()) == os.getpid()
