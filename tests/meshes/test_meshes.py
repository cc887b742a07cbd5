"""Every mesh with every value of the other axes: the plan's answer, and the numbers where it is legal.

`make meshes` writes the table of docs/reference/plan.md; `make meshes ARGS="MESH VALUE"` tries one cell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from meshes import table
from meshes.axes import MESHES, VALUES, Cell, Standing, cells
from meshes.state_bytes import STATES, formula, on_rank
from meshes.trial import models_of, try_cell
from ronde.testing.run_ranks import RankPool

# One cell of each kind, on few ranks; `make soak` runs all.
SAMPLE = {
    ("tensor=2", "micro-batches=2", "llama"),
    ("pipeline=2", "precision=fp16", "llama"),
    ("context=2", "recompute=selective", "gpt"),
    ("tensor=2,context=2", "zero3", "gpt"),
    ("pipeline=2,context=2", "micro-batches=2,schedule=1f1b", "llama"),
    ("expert=2", "recompute=full", "mixtral"),
    ("expert=2", "bytegrad", "mixtral"),
    ("data=2,tensor=2", "onebit", "llama"),
    ("tensor=2,pipeline=2", "micro-batches=2,schedule=1f1b", "llama"),
    ("pipeline=2", "micro-batches=4,schedule=zero-bubble", "gpt"),
    ("data=4,expert=2", "precision=fp16", "mixtral"),
    ("expert=2", "sparse=sharded", "mixtral"),
    ("data=2,tensor=2,expert=2", "zero3", "mixtral"),
    ("context=2,expert=2", "zero3", "mixtral"),
    ("data=2,pipeline=2,expert=2", "micro-batches=2,schedule=1f1b", "mixtral"),
}


# Of the bytes of state; `make soak` counts all.
COUNTED = {
    ("data=2,tensor=2", "zero3", "gpt"),
    ("pipeline=2", "zero2", "llama"),
    ("data=2,tensor=2,expert=2", "zero2", "mixtral"),
    ("data=4,expert=2", "zero3", "mixtral"),
}
# Of the formula's bytes.
ALLOWED = 1.1


# Of models that are built inside `ronde.deferred()`.
SAMPLE_IN_PARTS = {
    ("tensor=2", "zero1", "gpt"),
    ("pipeline=2", "zero1", "llama"),
    ("context=2", "zero3", "llama"),
    ("expert=2", "zero3", "mixtral"),
}
VALUES_IN_PARTS = ("zero1", "zero2", "zero3")


def trials(
    sample: Collection[tuple[str, str, str]] = SAMPLE, values: Collection[str] = VALUES
) -> Iterator[object]:
    for cell in cells():
        if cell.standing is Standing.LEGAL and cell.value in values:
            for model in models_of(cell.mesh):
                quick = (cell.mesh, cell.value, model) in sample
                name = f"{cell.mesh}-{cell.value}-{model}"
                yield pytest.param(cell, model, id=name, marks=() if quick else pytest.mark.soak)


def counts() -> Iterator[object]:
    for mesh in MESHES:
        for state in ("", *STATES):
            cell = Cell(mesh, state)
            for model in models_of(mesh) if cell.standing is Standing.LEGAL else ():
                quick = (mesh, state, model) in COUNTED
                yield pytest.param(
                    cell, model, id=f"{cell.plan}-{model}", marks=() if quick else pytest.mark.soak
                )


@pytest.fixture(scope="module")
def eight() -> Iterator[Callable[..., list[Any]]]:
    pool = RankPool(8, timeout=300)
    yield pool.run
    pool.close()


@pytest.fixture
def run(request: pytest.FixtureRequest, cell: Cell) -> Callable[..., list[Any]]:
    if cell.ranks == 8:
        return request.getfixturevalue("eight")
    return functools.partial(request.getfixturevalue("ranks"), cell.ranks)


@pytest.mark.parametrize(("cell", "model"), list(trials()))
def test_a_legal_cell_has_the_numbers_of_its_reference(
    cell: Cell, model: str, run: Callable[..., list[Any]]
) -> None:
    try_cell(cell, model, run)


@pytest.mark.parametrize(("cell", "model"), list(counts()))
def test_a_rank_holds_the_bytes_of_the_formula(cell: Cell, model: str, run: Callable[..., list[Any]]) -> None:
    for rank, held in enumerate(run(on_rank, cell.plan, model)):
        wanted = formula(cell.plan, cell.ranks, rank, model)
        assert sum(held[kind] for kind in wanted) <= ALLOWED * sum(wanted.values()), (rank, held, wanted)
        # Nothing has escaped the count; units are gathered between the moments of counting.
        for kind in ("gradients", "optimizer"):
            assert held[kind] >= wanted[kind] / ALLOWED, (rank, held, wanted)


@pytest.mark.parametrize(("cell", "model"), list(trials(SAMPLE_IN_PARTS, VALUES_IN_PARTS)))
def test_a_model_that_is_cut_as_it_is_built_has_the_same_numbers(
    cell: Cell, model: str, run: Callable[..., list[Any]]
) -> None:
    try_cell(cell, model, run, deferred=True)


def test_the_page_has_what_the_plan_says() -> None:
    assert table.shown() == table.table(), "write it anew by `make meshes`"


def test_a_refusal_names_the_value_and_what_is_legal() -> None:
    for cell in cells():
        for sentence in cell.sentences:
            assert "nearest legal: " in sentence or "available with: " in sentence, sentence


def test_the_sample_is_legal() -> None:
    for mesh, value, model in SAMPLE | SAMPLE_IN_PARTS:
        assert Cell(mesh, value).sentences == []
        assert model in models_of(mesh)
