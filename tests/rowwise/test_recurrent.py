"""Recurrent layers come as one operation each where they are patched so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ronde.messages import lift
from ronde.modules import recurrent
from ronde.patching.patches import Patches
from rowwise.one_rank import observe
from rowwise.rowwise_cases import ROWS, Recurrent, Written, linear


@pytest.fixture(autouse=True)
def _as_one() -> Iterator[None]:
    patches = Patches()
    recurrent.install(patches)
    yield
    patches.restore()


LAYERS = {
    "lstm": lambda: (nn.LSTM(6, 8, 2, batch_first=True), (torch.randn(ROWS, 5, 6),), [0]),
    "gru, time first": lambda: (nn.GRU(6, 8, bidirectional=True), (torch.randn(5, ROWS, 6),), [1]),
    "as long as wide": lambda: (nn.LSTM(6, ROWS), (torch.randn(ROWS, ROWS, 6),), [1]),
    "rnn": lambda: (nn.RNN(6, 8, batch_first=True), (torch.randn(ROWS, 5, 6),), [0]),
    "with dropout": lambda: (Recurrent(nn.LSTM), (torch.randn(ROWS, 5, 6),), [0]),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_cut(name: str, gradients: bool) -> None:
    module, args, axes = LAYERS[name]()
    with torch.set_grad_enabled(gradients):
        torch.manual_seed(0)
        observed = observe(module, args, axes=axes)
        assert observed.verdict.sharded, observed.verdict.reason
        torch.manual_seed(0)
        expected = module(*args)
    first = expected if isinstance(expected, torch.Tensor) else expected[0]
    found = observed.output if isinstance(expected, torch.Tensor) else observed.output[0]
    assert torch.equal(first, found)
    assert len(observed.steps.steps) < 30


def test_layers_over_the_batch_are_not_cut() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.unsqueeze(0))[0][0]

    module = Written(forward, layer=nn.LSTM(6, 8, batch_first=True), other=linear())
    verdict = observe(module, (torch.randn(ROWS, 6),)).verdict
    assert lift(verdict.reason)[1] == "rows of its output depend on other rows, or on their number (lstm)"
