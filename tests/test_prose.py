"""The lint of prose finds what it should, and lets good sentences pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "lint" / "prose.py"


@pytest.fixture(scope="module")
def prose() -> Any:
    spec = importlib.util.spec_from_file_location("prose", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ('"""Average gradients over the ranks of `data`."""', []),
        ('"""The shard of a parameter; `None` before the first step."""', []),
        ('"""Of one run."""', ["P1"]),
        ('"""What a worker is told."""', ["P1", "P3"]),
        (f'"""Return {"one " * 14}."""', ["P2"]),
        ('"""Send a row.\n\n    It may be any sentence here, and what it says is long."""', []),
        ('"""Send.\n\nArgs:\n    row: the row to send.\n    of: by which it is known.\n"""', ["P4"]),
        ("number = 1  # this one is none", ["P5"]),
        ('"""Return it."""\nraise ValueError("this is no number")', ["P5"]),
        ('"""Return `is none`."""', []),
    ],
)
def test_findings(prose: Any, source: str, codes: list[str]) -> None:
    assert [each.code for each in prose.findings(source)] == codes
