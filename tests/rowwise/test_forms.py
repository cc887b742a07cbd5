"""Later calls are observed too, and begin with what earlier ones learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ronde.rowwise import repeat
from rowwise.models import MODELS
from rowwise.one_rank import observe
from rowwise.rowwise_cases import Written, linear, table


@pytest.mark.parametrize("name", ["ResNet", "GPT", "Swin", "State space"])
@pytest.mark.parametrize("rows", [8, 5])
def test_little_is_tried_again(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = MODELS[name](8)
    forms = observe(module, args).forms
    tried: list[bool] = []
    plain: Callable[..., Any] = repeat._tried

    def counted(*args: Any, random: bool) -> Any:
        tried.append(random)
        return plain(*args, random=random)

    monkeypatch.setattr(repeat, "_tried", counted)
    observed = observe(module, tuple(each[:rows].clone() for each in args), forms=forms)
    assert observed.verdict.sharded, observed.verdict.reason
    assert True not in tried
    assert len(tried) < 10  # what is looked up in tables


def test_what_is_learnt_of_mixing_is_remembered() -> None:
    module, args = Written(lambda self, x: self.layer(x).cumsum(0), layer=linear()), (table(),)
    first = observe(module, args)
    again = observe(module, args, forms=first.forms)
    assert again.verdict.reason == first.verdict.reason != ""


CHANGING: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "factor": lambda self, x: self.layer(x) * (1 - self.n / 10),
    "branch": lambda self, x: self.layer(x) if self.n < 2 else self.layer(x).relu(),
    "width": lambda self, x: self.layer(x)[:, : self.n],
    "shift": lambda self, x: self.layer(x).roll(self.n, 1),
    "dropout": lambda self, x: nn.functional.dropout(self.layer(x), 0.1 * self.n),
    "tensor": lambda self, x: self.layer(x) * torch.tensor(self.n),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_number_that_changes_nothing_about_rows(name: str) -> None:
    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return CHANGING[name](self, x)

    module, args = Written(counted, layer=linear(), n=0), (table(),)
    forms = None
    for call in range(1, 4):
        observed = observe(module, args, forms=forms)
        assert observed.verdict.sharded, observed.verdict.reason
        assert module.n == call  # nothing is carried out twice
        forms = observed.forms


def test_rows_that_meet_later_are_found_then() -> None:
    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.layer(x) if self.n < 3 else self.layer(x) - x.mean(0)

    module, args = Written(counted, layer=linear(), n=0), (table(),)
    first = observe(module, args)
    second = observe(module, args, forms=first.forms)
    third = observe(module, args, forms=second.forms)
    assert (first.verdict.sharded, second.verdict.sharded) == (True, True)
    assert third.verdict.reason == "rows of the batch meet inside it (mean)"
    assert module.n == 2


def test_a_branch_on_the_number_of_rows_is_remembered() -> None:
    module = Written(lambda self, x: self.layer(x) if len(x) > 5 else x, layer=linear())
    forms = observe(module, (table(),)).forms
    assert forms.fits(32, 8)
    assert not forms.fits(20, 5)  # all rows would go one way, and a rank's another
    assert not forms.fits(4, 2)  # both go a way that was not observed
