"""Ranks that torchrun has started become ronde's, process by process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ronde.cluster.environment import ClusterEnvironment
from ronde.errors import LaunchError
from ronde.launch.external_launch import become_rank, shared_run_id, shared_seed
from ronde.launch.job import LaunchJob
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory

from .conftest import BOUND_S

DRIVER = Path(__file__).with_name("join_driver.py")
SCRIPT = """
print(os.environ["FAKE_CONFIG"])
print("stdin:", sys.stdin.read(), file=sys.stderr)
names = ("RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")
sys.exit(3 + len([name for name in names if name in os.environ]))
"""


def _place(rank: int, **changes: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **changes,
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_joins(experiment: Any, tmp_path: Path, rank: int) -> None:
    run_dir, script = tmp_path / "run", experiment.command(SCRIPT)[4]
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(run_dir), script, "--epochs", "2"],
        env=experiment.environment(**_place(rank)),
        input=b"typed",
        capture_output=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 3
    shown = (done.stdout + done.stderr).decode()
    written = shown if rank == 0 else (run_dir / "rank-1.log").read_text()
    assert (shown == "") is (rank == 1)
    assert ("stdin: typed" in written) is (rank == 0)
    config = json.loads(next(line for line in written.splitlines() if line.startswith("{")))
    assert (config["rank"], config["world_size"], config["local_rank"]) == (rank, 2, rank)
    assert config["store"] == "tcp://127.0.0.1:29511"
    assert config["arguments"] == ["--epochs", "2"]


def test_ranks_agree_on_run_and_seed_and_restarts_differ() -> None:
    first, second = (ClusterEnvironment.detect(_place(rank)) for rank in (0, 1))
    assert first is not None
    assert second is not None
    agent = os.getpid()
    assert shared_run_id(first, agent) == shared_run_id(second, agent)
    assert shared_seed(first) == shared_seed(second)
    again = dataclasses.replace(first, restart_count=1)
    assert shared_run_id(again, agent) != shared_run_id(first, agent)


@pytest.mark.parametrize(
    ("changes", "devices", "message"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, (), "unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
        ({}, ("0",), "started 2 ranks on this host, but it offers 1 CUDA devices; use --nproc-per-node 1"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, str], devices: tuple[str, ...], message: str) -> None:
    environment = _place(0, **changes)
    place = ClusterEnvironment.detect(environment)
    assert place is not None
    directory = RunDirectory.join(tmp_path, "torchrun-abcdef", {})
    job = LaunchJob(
        run=RunSpec(script="x.py"), ranks=2, run_directory=directory, environment=environment, devices=devices
    )
    with pytest.raises(LaunchError, match=message):
        become_rank(job, place)
    directory.release()
