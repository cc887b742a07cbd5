"""That most calls in training were on fewer rows than ranks is said where something else was cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from codes import without_codes
from ronde.testing.run_ranks import Rank


class Steps(nn.Module):
    """In parts, as it reads a value: its layers are no calls of the script's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) if x.sum().item() < 1e9 else x


def _small_of(
    rank: Rank, rows: list[int], evaluated: list[int], kind: type[nn.Module] = nn.Linear
) -> list[str]:
    with rank.session() as session:
        torch.manual_seed(0)
        model = nn.Linear(4, 4) if kind is nn.Linear else kind()
        for number in rows:
            model(torch.ones(number, 4)).sum().backward()
        with torch.no_grad():
            for number in evaluated:
                model.eval()(torch.ones(number, 4))
        return [note for note in without_codes(session.summary().notes) if "fewer rows" in note]


@pytest.mark.parametrize(
    ("rows", "evaluated", "small"),
    [
        ([1, 1, 8], [], (2, 3)),
        ([2, 2, 2], [8], (3, 3)),
        ([1, 1, 1], [1, 8], (3, 3)),
        ([1, 8], [1, 1], None),
        ([3, 3, 3], [1, 1, 1, 1], None),
        ([8, 8, 8, 1], [], None),
    ],
)
def test_the_share_of_small_batches_is_said(
    ranks: Any, rows: list[int], evaluated: list[int], small: tuple[int, int] | None
) -> None:
    said = small and (
        f"{small[0]} of {small[1]} calls of modules in training were on fewer rows than there are ranks (3): "
        f"every rank computed them whole, right but no faster; larger batches can be cut"
    )
    assert ranks(3, _small_of, rows, evaluated) == [[said] if said else []] * 3


def test_calls_inside_a_module_in_parts_are_one_call(ranks: Any) -> None:
    for notes in ranks(2, _small_of, [1, 1, 8], [], Steps):
        assert notes[0].startswith("2 of 3 calls")


def test_where_nothing_was_cut_that_is_said_alone(ranks: Any) -> None:
    assert ranks(2, _small_of, [1, 1], []) == [[]] * 2
