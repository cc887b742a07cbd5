"""Ranks on the CPU keep freed memory, unless the user has a say in it."""

from __future__ import annotations

import pytest

from ronde.launch.allocator import keeping_memory
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.rank_environment import rank_environment
from ronde.launch.run_spec import RunSpec


def test_freed_memory_is_kept() -> None:
    added = keeping_memory({"PATH": "/bin"})
    assert (added["MALLOC_MMAP_MAX_"], added["GLIBC_TUNABLES"]) == ("0", "glibc.malloc.hugetlb=1")


@pytest.mark.parametrize(
    "name", ["MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"]
)
def test_the_users_choice_stands(name: str) -> None:
    assert keeping_memory({name: "1"}) == {}


@pytest.mark.parametrize(
    ("world_size", "device", "kept"), [(2, None, True), (1, None, False), (2, "0", False)]
)
def test_only_ranks_on_the_cpu_are_told(world_size: int, device: str | None, kept: bool) -> None:
    place = RankPlace(
        rank=0,
        world_size=world_size,
        local_rank=0,
        local_world_size=world_size,
        run_dir="run",
        store="file://run/store",
    )
    config = RankConfig(run=RunSpec(script="train.py"), place=place)
    found = rank_environment({}, config, run_id="x", threads=None, device=device)
    assert ("MALLOC_MMAP_MAX_" in found) == kept


@pytest.mark.parametrize(("plan", "returned"), [("zero3", True), ("central", True), ("zero2", False)])
def test_where_parameters_come_and_go_memory_is_returned(plan: str, returned: bool) -> None:
    place = RankPlace(
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        run_dir="/nowhere",
        store="file:///nowhere/store",
    )
    config = RankConfig(run=RunSpec(script="train.py", plan=plan), place=place)
    made = rank_environment({}, config, run_id="1", threads=1, device=None)
    assert ("MALLOC_MMAP_THRESHOLD_" in made, "MALLOC_MMAP_MAX_" in made) == (returned, not returned)
