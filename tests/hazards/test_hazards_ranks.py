"""Each hazard ends in the right answer, in one piece or in parts with a sentence why, or is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from hazards import (
    arguments,
    around,
    backward,
    beside,
    books,
    hooks,
    inference,
    kept,
    lengths,
    loading,
    numbers,
    outputs,
    outside,
    randomness,
    rows,
    second_axis,
    unasked,
    unnamed,
)
from hazards.harness import check
from ronde.testing.run_ranks import Rank

ROOMS = {
    "rows": rows,
    "second axis": second_axis,
    "kept": kept,
    "arguments": arguments,
    "around": around,
    "hooks": hooks,
    "inference": inference,
    "backward": backward,
    "numbers": numbers,
    "outputs": outputs,
    "outside": outside,
    "randomness": randomness,
    "loading": loading,
    "unasked": unasked,
    "beside": beside,
    "books": books,
    "lengths": lengths,
    "unnamed": unnamed,
}
NAMES = [(room, name) for room, module in ROOMS.items() for name in module.HAZARDS]


def _everyday(room: str, name: str) -> Any:
    """All but the books by a global name, which are there as attributes, too: `make soak` has them."""
    seldom = room == "books" and name.endswith(", named")
    return pytest.param(room, name, id=f"{room}-{name}", marks=pytest.mark.soak if seldom else ())


def _hazard(rank: Rank, room: str, name: str) -> list[str]:
    return check(rank, ROOMS[room].HAZARDS[name])


def _right(rank: Rank, name: str, plan: str) -> list[str]:
    return check(rank, dataclasses.replace(backward.HAZARDS[name], end="right"), plan)


@pytest.mark.parametrize(("room", "name"), [_everyday(*each) for each in NAMES])
def test_a_hazard_ends_well(ranks: Any, room: str, name: str) -> None:
    assert ranks(2, _hazard, room, name) == [[], []]


def _default_device() -> Any:
    """As `torch.set_default_device`: a mode that every function of torch asks first."""
    return torch.device("cpu")


def _in_mode(rank: Rank, room: str, name: str) -> list[str]:
    return check(rank, ROOMS[room].HAZARDS[name], mode=_default_device)


@pytest.mark.soak
@pytest.mark.parametrize(("room", "name"), NAMES, ids=[f"{room}-{name}" for room, name in NAMES])
def test_a_hazard_ends_well_with_a_default_device(ranks: Any, room: str, name: str) -> None:
    assert ranks(2, _in_mode, room, name) == [[], []]


@pytest.mark.parametrize("plan", ["zero3", "micro-batches=2", "recompute=full"])
@pytest.mark.parametrize(
    "name", ["reversible around another", "checkpoint by hand", "in the script", "gives a gradient by hand"]
)
def test_a_backward_that_calls_modules_is_right_under(ranks: Any, name: str, plan: str) -> None:
    assert ranks(2, _right, name, plan) == [[], []]


def _under_zero2(rank: Rank, name: str) -> list[str]:
    return check(rank, backward.HAZARDS[name], "zero2")


@pytest.mark.parametrize("name", ["gives a gradient by hand", "gives a gradient by its other name"])
def test_a_backward_that_writes_a_gradient_is_seen_where_gradients_are_in_parts(
    ranks: Any, name: str
) -> None:
    assert ranks(2, _under_zero2, name) == [[], []]


def _made(rank: Rank, name: str, plan: str) -> list[str]:
    return check(rank, dataclasses.replace(hooks.HAZARDS[name], end="right"), plan)


@pytest.mark.parametrize("plan", ["zero3", "micro-batches=2", "recompute=full", "central"])
@pytest.mark.parametrize("name", [name for name in hooks.HAZARDS if name.startswith("a weight is made")])
def test_a_weight_that_a_hook_makes_is_right_under(ranks: Any, name: str, plan: str) -> None:
    assert ranks(2, _made, name, plan) == [[], []]


def _padded(rank: Rank, name: str) -> list[str]:
    return check(rank, dataclasses.replace(rows.HAZARDS[name], end="right"), "zero3")


@pytest.mark.parametrize("name", ["padding at the ends", "padding at the ends, in parts"])
def test_padded_places_are_zeros_under_zero3(ranks: Any, name: str) -> None:
    assert ranks(2, _padded, name) == [[], []]


def _drawn(rank: Rank, name: str, plan: str) -> list[str]:
    return check(rank, randomness.HAZARDS[name], plan)


@pytest.mark.parametrize("plan", ["zero3", "micro-batches=2"])
@pytest.mark.parametrize("name", ["recurrent layers", "recurrent layers of another kind"])
def test_draws_of_recurrent_layers_are_one_devices_under(ranks: Any, name: str, plan: str) -> None:
    assert ranks(2, _drawn, name, plan) == [[], []]


def test_there_are_many() -> None:
    assert len(NAMES) >= 100


def _beside(rank: Rank, name: str, plan: str) -> list[str]:
    return check(rank, dataclasses.replace(beside.HAZARDS[name], end="right"), plan)


@pytest.mark.parametrize("plan", ["zero3", "micro-batches=2", "recompute=full"])
@pytest.mark.parametrize("name", [*beside.MEANWHILE, *beside.OTHERS])
def test_what_a_thread_does_meanwhile_is_right_under(ranks: Any, name: str, plan: str) -> None:
    assert ranks(2, _beside, name, plan) == [[], []]
