"""Each hazard ends in the right answer, in one piece or in parts with a sentence why, or is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hazards import backward, beside, hooks, randomness, rows
from hazards.every import HAZARDS
from hazards.harness import check
from ronde.testing.run_ranks import Rank

NAMES = [(room, name) for room, hazards in HAZARDS.items() for name in hazards]


# Rooms whose hazards differ by where code keeps the same thing: tried every day; `make soak` has all.
SAMPLES = {
    "books": {
        *{"learning rate, kept", "cached property, kept", "weak reference, kept", "new at every call, kept"},
        *{"module, kept", "joins rows with a table"},
    },
    "numbers": {
        *{"global variable", "warm-up by buffer", "count of calls", "argument decides", "annealed argument"},
        *{
            "every other call",
            "norm of weights, annealed",
            "layer replaced",
            "dropout later",
            "modes of parts",
            "in a list",
        },
        *{"evaluated in between", "attribute set by the script"},
    },
    "lengths": {
        "a bank",
        "a cached method",
        "a kept shape",
        "a mask of which as much is taken as the input is long",
    },
    "unnamed": {"branch in a module that is imported in forward", "model by its global name"},
}
# The same of `rows`, where what differs is what the number of rows decides.
MORE_ROWS = {"more rows, another branch", "more rows, another layer", "more rows, another size"}


# Rooms of many that end alike: of those, every twelfth is tried every day.
LARGE = {
    *{"arguments", "around", "backward", "hooks", "kept", "loading", "outputs", "outside"},
    *{"randomness", "rows", "second axis", "unasked"},
}


def _everyday(room: str, name: str) -> Any:
    if room == "rows" and name.startswith("more rows"):
        seldom = name not in MORE_ROWS
    else:
        seldom = name not in SAMPLES.get(room, {name}) or (room in LARGE and _alike(room, name) % 12 != 0)
    return pytest.param(room, name, id=f"{room}-{name}", marks=pytest.mark.soak if seldom else ())


def _alike(room: str, name: str) -> int:
    """How many before it in its room end as it does, with the same words."""
    own = HAZARDS[room][name]
    before = list(HAZARDS[room])[: list(HAZARDS[room]).index(name)]
    return sum(
        (HAZARDS[room][each].end, HAZARDS[room][each].words) == (own.end, own.words) for each in before
    )


def test_samples_are_names() -> None:
    assert {(room, name) for room, names in SAMPLES.items() for name in names} <= set(NAMES)
    assert {("rows", name) for name in MORE_ROWS} <= set(NAMES)


def _under(names: Sequence[str], plans: Sequence[str]) -> list[Any]:
    """Every name under some plan, and every plan with some name; `make soak` has all pairs."""
    return [
        pytest.param(
            name,
            plan,
            id=f"{name}-{plan}",
            marks=() if place == number % len(plans) or number == place % len(names) else pytest.mark.soak,
        )
        for number, name in enumerate(names)
        for place, plan in enumerate(plans)
    ]


def _hazard(rank: Rank, room: str, name: str) -> list[str]:
    return check(rank, HAZARDS[room][name])


def _right(rank: Rank, name: str, plan: str) -> list[str]:
    return check(rank, dataclasses.replace(backward.HAZARDS[name], end="right"), plan)


@pytest.mark.parametrize(("room", "name"), [_everyday(*each) for each in NAMES])
def test_a_hazard_ends_well(ranks: Any, room: str, name: str) -> None:
    assert ranks(2, _hazard, room, name) == [[], []]


def _default_device() -> Any:
    """As `torch.set_default_device`: a mode that every function of torch asks first."""
    return torch.device("cpu")


def _in_mode(rank: Rank, room: str, name: str) -> list[str]:
    return check(rank, HAZARDS[room][name], mode=_default_device)


@pytest.mark.soak
@pytest.mark.parametrize(("room", "name"), NAMES, ids=[f"{room}-{name}" for room, name in NAMES])
def test_a_hazard_ends_well_with_a_default_device(ranks: Any, room: str, name: str) -> None:
    assert ranks(2, _in_mode, room, name) == [[], []]


@pytest.mark.parametrize(
    ("name", "plan"),
    _under(
        ["reversible around another", "checkpoint by hand", "in the script", "gives a gradient by hand"],
        ["zero3", "micro-batches=2", "recompute=full"],
    ),
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


@pytest.mark.parametrize(
    ("name", "plan"),
    _under(
        [name for name in hooks.HAZARDS if name.startswith("a weight is made")],
        ["zero3", "micro-batches=2", "recompute=full", "central"],
    ),
)
def test_a_weight_that_a_hook_makes_is_right_under(ranks: Any, name: str, plan: str) -> None:
    assert ranks(2, _made, name, plan) == [[], []]


def _padded(rank: Rank, name: str) -> list[str]:
    return check(rank, dataclasses.replace(rows.HAZARDS[name], end="right"), "zero3")


@pytest.mark.parametrize("name", ["padding at the ends", "padding at the ends, in parts"])
def test_padded_places_are_zeros_under_zero3(ranks: Any, name: str) -> None:
    assert ranks(2, _padded, name) == [[], []]


def _drawn(rank: Rank, name: str, plan: str) -> list[str]:
    return check(rank, randomness.HAZARDS[name], plan)


@pytest.mark.parametrize(
    ("name", "plan"),
    _under(["recurrent layers", "recurrent layers of another kind"], ["zero3", "micro-batches=2"]),
)
def test_draws_of_recurrent_layers_are_one_devices_under(ranks: Any, name: str, plan: str) -> None:
    assert ranks(2, _drawn, name, plan) == [[], []]


def _many_more(rank: Rank, plan: str) -> list[str]:
    return check(rank, rows.HAZARDS["more rows than a trial takes, another branch"], plan)


@pytest.mark.parametrize("plan", ["recompute=full", "micro-batches=2"])
def test_a_trial_on_few_rows_does_not_hide_what_their_number_decides(ranks: Any, plan: str) -> None:
    assert ranks(2, _many_more, plan) == [[], []]


def test_there_are_many() -> None:
    assert len(NAMES) >= 100


def _beside(rank: Rank, name: str, plan: str) -> list[str]:
    return check(rank, dataclasses.replace(beside.HAZARDS[name], end="right"), plan)


@pytest.mark.parametrize(
    ("name", "plan"),
    _under([*beside.MEANWHILE], ["zero3", "micro-batches=2", "recompute=full"]),
)
def test_what_a_thread_does_meanwhile_is_right_under(ranks: Any, name: str, plan: str) -> None:
    assert ranks(2, _beside, name, plan) == [[], []]
