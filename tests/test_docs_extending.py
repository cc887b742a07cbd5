"""The example of docs/development/extending.md gives plain torch's values and gradients, sharded."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "development" / "extending.md"
PATH = ROOT / "docs" / "examples" / "cosine_similarity.py"


def test_what_the_pages_name_is_there() -> None:
    for page in (PAGE, PAGE.with_name("rooms.md")):
        paths = re.findall(r"`((?:src|tests)/[^` ]*)`", page.read_text())
        assert [path for path in paths if not (ROOT / path).exists()] == []
        assert len(paths) > 5


def test_the_page_names_every_file_of_rules() -> None:
    rules = {path.name for path in (ROOT / "src/ronde/tensor/rules").glob("*.py")} - {
        "__init__.py",
        "common.py",
    }
    assert set(re.findall(r"^\| `(\w+\.py)` \|", PAGE.read_text(), re.MULTILINE)) == rules


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """The example as a module, so that ranks can be sent its functions."""
    spec = importlib.util.spec_from_file_location("docs_cosine_similarity", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_example_s_rule_keeps_rows_sharded_and_right(
    ranks: Any, example: ModuleType, world_size: int
) -> None:
    similarity, gradient = example.plain()
    for kept, value, grad in ranks(world_size, example.on_ranks):
        assert kept
        torch.testing.assert_close(value, similarity)
        torch.testing.assert_close(grad, gradient)
