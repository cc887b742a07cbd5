"""What ranks find in their environment."""

from __future__ import annotations

from typing import Any

from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.rank_environment import rank_environment
from ronde.launch.run_spec import DEFAULT_PLAN, RunSpec
from ronde.plan import Plan
from ronde.runtime.torchrun import torchrun_environment

AROUND = {
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "7",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMI_SIZE": "2",
    "HOME": "/h",
}


def config(*, native: bool = False, **changes: Any) -> RankConfig:
    fields = {
        "rank": 3,
        "world_size": 4,
        "local_rank": 1,
        "local_world_size": 2,
        "run_dir": "/r",
        "store": "",
        "device": "cuda",
    }
    return RankConfig(run=RunSpec(script="x.py", native=native), place=RankPlace(**{**fields, **changes}))


def made(*, native: bool = False) -> dict[str, str]:
    return rank_environment(AROUND, config(native=native), run_id="1", threads=None, device="1")


def test_a_rank_sees_one_device_and_no_scheduler() -> None:
    found = made()
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert found.keys() & AROUND.keys() == {"SLURM_JOB_ID", "HOME"}


def test_a_script_with_groups_of_its_own_sees_all() -> None:
    """It takes the device of its LOCAL_RANK, which is 1 here."""
    found = made(native=True)
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert found.keys() >= AROUND.keys()
    told = torchrun_environment(config(native=True, host=1, hosts=2))
    assert (told["LOCAL_RANK"], told["GROUP_RANK"], told["GROUP_WORLD_SIZE"]) == ("1", "1", "2")


def test_the_default_of_ranks_is_the_plan_without_items() -> None:
    assert str(Plan()) == DEFAULT_PLAN
