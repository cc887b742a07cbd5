"""Ranks with a CUDA device each, which exchange tensors by NCCL: the numbers of one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ronde.testing.parity import assert_parity

pytestmark = pytest.mark.gpu

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts").glob("*.py"))
STATE = ("zero1", "zero2", "zero3", "central", "zero1,offload=optimizer", "zero3,offload=all")
COMPUTE = ("micro-batches=3", "recompute=full", "zero3,recompute=selective")
NARROW = ("precision=bf16", "precision=fp16", "zero2,precision=bf16")
# With shared parameters, several optimizers, clipping, accumulation, state that is saved and loaded.
NAMES = ("tied", "gan", "clip_and_log", "gradient_accumulation", "resume", "transformer")


@pytest.fixture(autouse=True)
def devices() -> tuple[str, ...]:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"needs two CUDA devices, NCCL wants one for each rank; torch sees {count}")
    return ("0", "1")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_data_parallel(script: Path, tmp_path: Path, devices: tuple[str, ...]) -> None:
    assert_parity(script, ranks=2, place=tmp_path, devices=devices)


@pytest.mark.parametrize("plan", [*STATE, *COMPUTE])
@pytest.mark.parametrize("name", NAMES)
def test_state_in_parts(name: str, plan: str, tmp_path: Path, devices: tuple[str, ...]) -> None:
    if "micro-batches" in plan and name == "gan":
        pytest.skip("batch norm forbids micro-batches")
    script = SCRIPTS[0].with_name(f"{name}.py")
    assert_parity(script, ranks=2, place=tmp_path, devices=devices, plan=plan)


@pytest.mark.parametrize("plan", NARROW)
@pytest.mark.parametrize("name", ["classifier", "transformer"])
def test_a_precision(name: str, plan: str, tmp_path: Path, devices: tuple[str, ...]) -> None:
    script = SCRIPTS[0].with_name(f"{name}.py")
    assert_parity(script, ranks=2, place=tmp_path, devices=devices, plan=plan, double=False)
