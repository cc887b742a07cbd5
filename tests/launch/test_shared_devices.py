"""Ranks on one CUDA device: what NCCL is told, and the user."""

from __future__ import annotations

from typing import Any

import pytest

from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.rank_environment import rank_environment
from ronde.launch.run_spec import RunSpec
from ronde.launch.shared_devices import deal, is_shared, nccl_environment, sharing_note


def place(rank: int, ranks: int = 2, **fields: Any) -> RankPlace:
    here: dict[str, Any] = {"local_rank": rank, "local_world_size": ranks, **fields}
    return RankPlace(
        rank=rank, world_size=ranks, run_dir="/r", store="file:///r/store", device="cuda", **here
    )


@pytest.mark.parametrize(
    ("devices", "shared"),
    [((), False), (("0",), False), (("0", "1"), False), (("0", "0"), True), (("0", "1", "0", "1"), True)],
)
def test_a_device_that_is_named_twice_is_shared(devices: tuple[str, ...], shared: bool) -> None:
    assert is_shared(devices) == shared
    assert bool(sharing_note(devices)) == shared


def test_ranks_take_devices_in_turn() -> None:
    assert deal(("0", "1"), 2) == ("0", "1")
    assert deal(("0", "1"), 3) == ("0", "1", "0")
    assert deal(("3",), 2) == ("3", "3")


def test_every_rank_is_a_host_of_its_own_on_loopback() -> None:
    made = [nccl_environment(place(rank, 4), {}) for rank in range(4)]
    assert len({each["NCCL_HOSTID"] for each in made}) == 4
    rest = {name: value for name, value in made[0].items() if name != "NCCL_HOSTID"}
    assert rest == {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }


def test_several_hosts_keep_their_network() -> None:
    """Loopback does not lead to another host; ranks with the same number differ by their hosts."""
    made = [
        nccl_environment(place(rank, 4, local_rank=rank % 2, local_world_size=2, host=rank // 2, hosts=2), {})
        for rank in range(4)
    ]
    assert len({each["NCCL_HOSTID"] for each in made}) == 4
    assert not any("NCCL_SOCKET_IFNAME" in each or "NCCL_IB_DISABLE" in each for each in made)


def test_the_users_network_remains() -> None:
    assert nccl_environment(place(0), {"NCCL_SOCKET_IFNAME": "eth7"})["NCCL_SOCKET_IFNAME"] == "eth7"


@pytest.mark.parametrize(
    ("shared", "native", "told"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_ranks_are_told_where_devices_are_shared(shared: bool, native: bool, told: bool) -> None:
    config = RankConfig(run=RunSpec(script="x.py", native=native), place=place(1))
    found = rank_environment({}, config, run_id="1", threads=None, device="0", shared=shared)
    assert ("NCCL_HOSTID" in found) == told
