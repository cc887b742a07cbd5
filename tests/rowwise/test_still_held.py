"""What holds rows after a call is a leak, unless it is there for backward only."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from rowwise.one_rank import observe
from rowwise.rowwise_cases import Case, Written, linear, of_table, table


class Attributed(torch.autograd.Function):
    """Keeps what it needs in attributes of its context."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * 2


def offloaded(self: Any, x: torch.Tensor) -> torch.Tensor:
    with save_on_cpu():
        return self.layer(self.layer(x).tanh()).sigmoid()


def packed(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda each: (each, each.dtype), lambda each: each[0]):
        return self.layer(self.layer(x).tanh()).sigmoid()


FOR_BACKWARD = {
    "context": lambda: of_table(lambda self, x: Attributed.apply(self.layer(x))),
    "checkpoint": lambda: of_table(
        lambda self, x: checkpoint(lambda h: self.layer(h).tanh(), self.layer(x), use_reentrant=False)
    ),
    "reentrant checkpoint": lambda: of_table(
        lambda self, x: checkpoint(lambda h: self.layer(h).tanh(), self.layer(x), use_reentrant=True)
    ),
    "offloaded": lambda: of_table(offloaded),
    "packed": lambda: of_table(packed),
}


@pytest.mark.parametrize("name", FOR_BACKWARD)
def test_what_is_there_for_backward_is_no_leak(name: str) -> None:
    case: Case = FOR_BACKWARD[name]()
    observed = observe(case.module, case.args)
    assert observed.verdict.sharded, observed.verdict.reason
    observed.output.sum().backward()


def test_lists_are_as_before() -> None:
    box: list[torch.Tensor] = []
    named: dict[str, torch.Tensor] = {}

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        made = self.layer(x)
        box.append(made)
        named["made"] = made
        return made * 2

    observed = observe(Written(forward, layer=linear()), (table(),))
    assert not observed.verdict.sharded
    assert (box, named) == ([], {})


def test_an_object_in_a_list_is_found() -> None:
    box: list[Any] = []

    class State:
        def __init__(self, rows: torch.Tensor) -> None:
            self.rows = rows

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        made = self.layer(x)
        box.append(State(made))
        return made * 2

    assert not observe(Written(forward, layer=linear()), (table(),)).verdict.sharded


def test_numbers_of_rows_are_found_anywhere() -> None:
    total = [0]

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        total[0] += len(x)
        return self.layer(x)

    assert not observe(Written(forward, layer=linear()), (table(),)).verdict.sharded


@pytest.mark.parametrize("more", [0, 2])
def test_references_are_counted_whatever_the_interpreter_adds(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    plain = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda each: plain(each) - 2 + more)
    box: list[torch.Tensor] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        made = self.layer(x)
        if self.keeps:
            box.append(made)
        return made * 2

    for keeps in (False, True):
        module = Written(forward, layer=linear(), keeps=keeps)
        assert observe(module, (table(),)).verdict.sharded is not keeps
