"""A right result passes and a wrong one does not, at sizes with and without a whole period."""

from __future__ import annotations

import pytest
import torch

from ronde.bench.collectives.cases import OPERATIONS
from ronde.bench.collectives.operand import Operand
from ronde.errors import BenchError

RANKS = 3
ROOT = 1
WITH_TENSORS = [name for name in OPERATIONS if name != "barrier"]


def operands(operation: str, elements: int) -> list[Operand]:
    """Of all ranks, after the operation."""
    made = [Operand(operation, elements, rank=rank, ranks=RANKS) for rank in range(RANKS)]
    for operand in made:
        operand.fill()
    given = torch.stack([operand.given for operand in made])
    for rank, operand in enumerate(made):
        cut = given.view(RANKS, RANKS, -1) if operation != "all-gather" else given[None]
        results = {
            "all-reduce": given.sum(0),
            "reduce-scatter": cut.sum(0)[min(rank, cut.shape[1] - 1)],
            "all-gather": given.flatten(),
            "broadcast": given[ROOT],
            "all-to-all": cut[:, min(rank, cut.shape[1] - 1)].flatten(),
        }
        operand.result.copy_(results[operation])
    return made


@pytest.mark.parametrize("elements", [3, 750, 3 * 251, 3000])
@pytest.mark.parametrize("operation", WITH_TENSORS)
def test_the_right_result(operation: str, elements: int) -> None:
    for operand in operands(operation, elements):
        operand.check(ROOT)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("elements", [3, 3000])
@pytest.mark.parametrize("operation", WITH_TENSORS)
def test_one_wrong_element(operation: str, elements: int, place: int) -> None:
    operand = operands(operation, elements)[2]
    right = float(operand.result[place])
    operand.result[place] = 0.5
    where = place % operand.result.numel()
    with pytest.raises(BenchError, match=f"element {where} is 0.5 where {right} is right"):
        operand.check(ROOT)


def test_nothing_received_is_wrong() -> None:
    operand = operands("all-gather", 3000)[0]
    operand.clear()
    with pytest.raises(BenchError, match=r"element 1 is 0.0 where 1.0 is right"):
        operand.check(ROOT)


def test_a_mean() -> None:
    memory = torch.zeros(3000)
    operand = Operand("all-reduce", 3000, rank=0, ranks=RANKS, memory=memory, mean=True)
    operand.fill()
    memory += 1.0  # as the mean of ranks 0, 1, 2
    operand.check(ROOT)


def test_a_barrier_has_nothing_to_check() -> None:
    operand = Operand("barrier", 0, rank=0, ranks=RANKS)
    operand.fill()
    operand.check(ROOT)
