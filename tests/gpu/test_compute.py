"""Precision, recomputation, micro-batches and compilation on a CUDA device: the numbers of one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.testing.parity import assert_parity

pytestmark = pytest.mark.gpu

SCRIPTS = Path(__file__).parents[1] / "scripts"
# With dropout, batch norm, a loss of its own, several backwards, clipping, files and accumulation.
NAMES = ("transformer", "resnet_batchnorm", "classifier", "gpt", "maml", "clip_and_log", "resume", "tied")
# Exactly the numbers of plain torch, up to the order of sums.
SAME_NUMBERS = (
    "recompute=full",
    "recompute=selective",
    "micro-batches=3",
    "zero3,offload=all,recompute=full",
)
# Those of plain torch in the same precision.
NARROW = ("precision=bf16", "precision=fp16", "precision=tf32", "precision=bf16,recompute=full")


def check(name: str, plan: str, place: Path, *, double: bool) -> None:
    if "micro-batches" in plan and name == "resnet_batchnorm":
        pytest.skip("batch norm forbids micro-batches")
    assert_parity(
        SCRIPTS / f"{name}.py", ranks=1, place=place, devices=("0",), plan=plan, double=double, steps=20
    )


@pytest.mark.parametrize("plan", SAME_NUMBERS)
@pytest.mark.parametrize("name", NAMES)
def test_what_only_saves_memory_changes_no_number(name: str, plan: str, tmp_path: Path) -> None:
    check(name, plan, tmp_path, double=True)


@pytest.mark.parametrize("plan", NARROW)
@pytest.mark.parametrize("name", NAMES)
def test_a_precision_is_that_of_one_device(name: str, plan: str, tmp_path: Path) -> None:
    check(name, plan, tmp_path, double=False)


@pytest.mark.parametrize("name", ["transformer", "mixture"])
def test_compiled_models_give_the_numbers_of_plain_torch(name: str, tmp_path: Path) -> None:
    check(name, "compile=true", tmp_path, double=False)
