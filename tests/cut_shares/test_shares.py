"""The table of docs/concepts/meshes.md has every model, and what it says of decoders holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from cut_shares.measure import MESHES, shares
from cut_shares.models import MODELS
from cut_shares.table import shown

DECODERS = ("GPT-2", "Llama", "Qwen2", "Gemma")
QUICK = ("Llama", "context=2")


def test_the_page_has_every_model_and_mesh() -> None:
    assert set(shown()) == {(model, mesh) for model in MODELS for mesh in MESHES}


@pytest.mark.parametrize(
    ("model", "mesh"),
    [
        pytest.param(model, mesh, marks=() if (model, mesh) == QUICK else pytest.mark.soak)
        for model in DECODERS
        for mesh in MESHES
    ],
)
def test_products_of_decoders_are_divided(model: str, mesh: str, ranks: Callable[..., list[Any]]) -> None:
    pytest.importorskip("transformers")
    found = shares(model, mesh, functools.partial(ranks, MESHES[mesh]))
    assert found.products >= 0.95, found
