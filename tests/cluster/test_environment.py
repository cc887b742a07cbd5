"""The torchrun environment: found, refused when half of it is there, hidden from the script."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ronde.cluster.environment import ClusterEnvironment, forced_threads, hidden_from_script
from ronde.errors import UsageError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_place() -> None:
    assert ClusterEnvironment.detect(TORCHRUN) == ClusterEnvironment(
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        master_address="node1",
        master_port=29500,
        run_id="none",
        restart_count=1,
        agent_store=True,
    )


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"MASTER_ADDR": "node1"}])
def test_not_under_torchrun(environment: dict[str, str]) -> None:
    assert ClusterEnvironment.detect(environment) is None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4"}, r"WORLD_SIZE=4 is set, but not by torchrun.*unset WORLD_SIZE"),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "1"}, r"incomplete: WORLD_SIZE, LOCAL_RANK, .* missing; unset"),
        ({**TORCHRUN, "RANK": "one"}, r"RANK='one' is not a number"),
    ],
)
def test_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ClusterEnvironment.detect(environment)


def test_hidden_names() -> None:
    others = {"PATH": "/bin", "RANKING": "x", "OMP_NUM_THREADS": "1"}
    names = {**TORCHRUN, "GROUP_RANK": "0", "ROLE_NAME": "default", "TORCHELASTIC_ERROR_FILE": "/x", **others}
    assert hidden_from_script(names) == set(names) - set(others)


@pytest.mark.parametrize("set_by_user", [True, False])
def test_threads_forced_by_the_agent_are_told_from_the_users(set_by_user: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if set_by_user:
        environment["OMP_NUM_THREADS"] = "1"
    agent = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        assert forced_threads({"OMP_NUM_THREADS": "1"}, agent.pid) is not set_by_user
        assert forced_threads({"OMP_NUM_THREADS": "2"}, agent.pid) is False
        assert forced_threads({}, agent.pid) is False
        agent.communicate(b"\n", timeout=20)
