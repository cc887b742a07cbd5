"""The sentence behind a traceback where running on many ranks has to do with the error."""

from __future__ import annotations

import re

import pytest

from ronde.launch.rank_config import RankConfig
from ronde.runtime.hints import hint


def config(device: str = "cpu") -> RankConfig:
    return RankConfig(
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        run_dir="/run",
        store="file:///run/store",
        script="train.py",
        device=device,
    )


def test_a_script_that_is_distributed_already() -> None:
    assert hint(KeyError("LOCAL_RANK"), config()) == (
        "the script reads LOCAL_RANK itself: it is written for many ranks already. Run it with "
        "`ronde run --native`, or leave the ranks out of the script"
    )


@pytest.mark.parametrize(
    "text",
    [
        "unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
        "are out of shared memory. Please try to raise your shared memory limit.",
    ],
)
def test_little_shared_memory(text: str) -> None:
    said = re.sub(r"/dev/shm, \d+ MB", "/dev/shm, N MB", hint(RuntimeError(text), config()))
    assert said == (
        "shared memory (/dev/shm, N MB) is too small for the batches that loader workers hand over on 2 "
        "ranks: make it larger (docker run --shm-size=8g), or use a smaller num_workers"
    )


def test_a_device_of_another_rank() -> None:
    error = RuntimeError("CUDA error: invalid device ordinal")
    assert hint(error, config("cuda")) == (
        'each rank sees one CUDA device, its own: write "cuda" or "cuda:0" instead of another number'
    )
    assert hint(error, config("cpu")) == ""


def test_other_errors_speak_for_themselves() -> None:
    assert hint(KeyError("label"), config()) == ""
    assert hint(ValueError("bad label"), config()) == ""
