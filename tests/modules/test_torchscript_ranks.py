"""`torch.jit.script` on ranks compiles what it does in plain python; it cannot read postponed annotations."""

import importlib
import re
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codes import without_codes
from ronde.testing.run_ranks import Rank


class _Net(nn.Module):
    """Calls functions that a session replaces: batch_norm, l1_loss, lstm, gru, and under zero3 tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.lstm, self.gru = nn.LSTM(4, 4), nn.GRU(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.gru(self.lstm(self.norm(self.layer(x)))[0])[0]
        return F.l1_loss(out, torch.tensor(0.5).expand_as(out))


def _script(rank: Rank, plan: str) -> tuple[bool, int]:
    with rank.session(plan):
        net, x = _Net().eval(), torch.ones(5, 3)
        alike = torch.allclose(torch.jit.script(net)(x), net(x))

        # Names that only the place of the call knows.
        @torch.jit.ignore
        def local(x: int) -> int:
            return x

        class Held:
            def __init__(self) -> None:
                self.value = local(2)

        held = torch.jit.script(Held)().value
        # Torch's own classes that are compiled as they are imported.
        sys.modules.pop("torch.distributed.optim.functional_adadelta", None)
        importlib.import_module("torch.distributed.optim.functional_adadelta")
    return alike, held


@pytest.mark.parametrize("plan", ["ddp", "zero3"])
def test_a_script_is_compiled_as_in_plain_python(ranks: Any, plan: str) -> None:
    assert ranks(2, _script, plan) == [(True, 2)] * 2


def _frozen(rank: Rank) -> float:
    def value() -> float:
        torch.manual_seed(5)
        model: Any = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()).double().eval()
        frozen: Any = torch.jit.freeze(torch.jit.script(model))
        x = torch.randn(6, 3, dtype=torch.float64)
        with torch.no_grad():
            return float(frozen(x).sum() + nn.Sequential(frozen)(x).sum())

    expected = value()
    with rank.session("ddp"):
        return abs(value() - expected)


def test_a_frozen_script_is_called(ranks: Any) -> None:
    assert max(ranks(2, _frozen)) < 1e-12


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


def _exported() -> list[str]:
    """Operations and shapes in the graph that the older exporter to ONNX writes."""
    torch.manual_seed(0)
    jit: Any = torch.jit
    graph = str(jit._get_trace_graph(_Recurrent().eval(), (torch.ones(6, 7, 4),))[0])
    return re.findall(r"Float\([^)]*\)|aten::\w+", graph)


def _exported_on_ranks(rank: Rank) -> tuple[bool, list[str]]:
    expected = _exported()
    with rank.session() as session:
        return _exported() == expected, without_codes(session.notes)


def test_a_model_is_exported_with_the_whole_batch(ranks: Any) -> None:
    assert ranks(2, _exported_on_ranks) == [(True, [])] * 2
