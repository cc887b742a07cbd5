"""The script that docs/concepts/comparison.md puts beside its conversions keeps the law under ronde."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from ronde.testing.parity import assert_parity

COMPARISON = Path(__file__).parents[1] / "docs" / "examples" / "comparison"


@pytest.mark.soak
def test_the_unchanged_script_gives_the_single_device_answer(tmp_path: Path) -> None:
    assert_parity(COMPARISON / "plain.py", ranks=2, place=tmp_path, steps=1000)


def code(name: str) -> list[str]:
    lines = (COMPARISON / name).read_text().splitlines()
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("DDP", "ddp.py"),
        ("Accelerate", "with_accelerate.py"),
        ("Fabric", "with_fabric.py"),
        ("Horovod", "with_horovod.py"),
        ("OneFlow", "with_oneflow.py"),
    ],
)
def test_the_page_counts_the_lines_that_differ(system: str, name: str) -> None:
    page = (COMPARISON.parents[1] / "concepts" / "comparison.md").read_text()
    said = re.search(rf"^\| {system} \| (\d+)", page, re.MULTILINE)
    assert said is not None
    delta = difflib.unified_diff(code("plain.py"), code(name), n=0)
    added = [line for line in delta if line.startswith("+") and not line.startswith("+++")]
    assert abs(len(added) - int(said[1])) <= 1
