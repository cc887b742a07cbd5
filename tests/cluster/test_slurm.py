"""Slurm's lists and variables, as its version 22.05 has written them."""

from __future__ import annotations

import pytest

from ronde.cluster.host_list import HostSlots
from ronde.cluster.slurm import allocation, expand_nodes, expand_tasks, has_own_devices, task_of_step
from ronde.errors import UsageError

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
BATCH = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "node[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "5",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a", ["a"]),
        ("a[1-3,7],b", ["a1", "a2", "a3", "a7", "b"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[0-1]n[1-2].x", ["r0n1.x", "r0n2.x", "r1n1.x", "r1n2.x"]),
        ("a-b[001],c-d", ["a-b001", "c-d"]),
        ("tux[0-1],login", ["tux0", "tux1", "login"]),
    ],
)
def test_node_lists(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "a[1-", "a[x-y]", "a]1["])
def test_no_node_list(text: str) -> None:
    with pytest.raises(UsageError, match="Slurm's nodes"):
        expand_nodes(text)


def test_task_lists() -> None:
    assert expand_tasks("2(x3),1") == [2, 2, 2, 1]
    assert expand_tasks("4") == [4]
    with pytest.raises(UsageError, match="not a list of Slurm's tasks"):
        expand_tasks("2x3")


def test_a_task_of_srun() -> None:
    place = task_of_step(STEP)
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (2, 3, 0, 1)
    assert (place.master_address, place.node, place.nodes) == ("node1", 1, 2)
    assert 12000 <= place.master_port < 30000
    another = task_of_step({**STEP, "SLURM_STEP_ID": "1"})
    assert another is not None
    assert another.master_port != place.master_port
    own = task_of_step({**STEP, "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "4000"})
    assert own is not None
    assert (own.master_address, own.master_port) == ("10.0.0.5", 4000)


@pytest.mark.parametrize("environment", [{}, BATCH, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}])
def test_no_task_of_several(environment: dict[str, str]) -> None:
    assert task_of_step(environment) is None


def test_the_nodes_of_an_allocation() -> None:
    hosts = [HostSlots("node1", 2), HostSlots("node2", 2), HostSlots("node3", 1)]
    assert allocation(BATCH, devices=0) == tuple(hosts)
    without = {name: value for name, value in BATCH.items() if name != "SLURM_NTASKS"}
    assert [host.slots for host in allocation(without, devices=4)] == [4, 4, 4]
    assert allocation({**BATCH, "SLURM_JOB_NUM_NODES": "1"}, devices=4) == ()
    assert allocation({}, devices=4) == ()


def test_whether_tasks_have_devices_of_their_own() -> None:
    assert has_own_devices({"SLURM_GPUS_PER_TASK": "1"})
    assert has_own_devices({"SLURM_TRES_PER_TASK": "cpu:4,gres:gpu:1"})
    assert not has_own_devices({"SLURM_GPUS_ON_NODE": "4"})
