"""Recurrent layers that modes see as one operation give what torch gives, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ronde.modules import recurrent
from ronde.patching.patches import Patches


class Onlooker(TorchDispatchMode):
    """Keeps the names of operations, and of those that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.told: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.told.append(str(func))


class Strange(Onlooker):
    """One that is not ours."""


Onlooker.__module__ = "ronde.modules.onlooker"


@pytest.fixture
def installed() -> Iterator[None]:
    patches = Patches()
    recurrent.install(patches)
    yield
    patches.restore()


def _layer(kind: str, dtype: torch.dtype, **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(torch.nn, kind)(5, 4, **options).to(dtype)


def _results(layer: Any, dtype: torch.dtype, mode: Any = None) -> list[torch.Tensor]:
    torch.manual_seed(3)
    layer.zero_grad()
    x = torch.randn(6, 7, 5, dtype=dtype, requires_grad=True)
    if mode is None:
        output, state = layer(x)
    else:
        with mode:
            output, state = layer(x)
    states = state if isinstance(state, tuple) else (state,)
    sums = [each.sin().sum() for each in (output, *states)]
    torch.stack(sums).sum().backward()
    gradients = [each.grad for each in (x, *layer.parameters()) if each.grad is not None]
    return [output, *states, *gradients]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.usefixtures("installed")
def test_outputs_and_gradients_are_torchs(kind: str, dtype: torch.dtype) -> None:
    for layers, both, first, training in itertools.product(
        (1, 3), (False, True), (False, True), (False, True)
    ):
        dropout = 0.4 if layers > 1 else 0.0
        options = {"num_layers": layers, "dropout": dropout, "bidirectional": both, "batch_first": first}
        layer, onlooker = _layer(kind, dtype, **options).train(training), Onlooker()
        plain, found = _results(layer, dtype), _results(layer, dtype, onlooker)
        assert all(map(torch.equal, plain, found))
        assert len(onlooker.told) == (layers if training else 1)
        assert any("bernoulli" in name for name in onlooker.names) == (training and layers > 1)
        assert not any("mm" in name or "sigmoid" in name for name in onlooker.names)


@pytest.mark.usefixtures("installed")
def test_another_mode_sees_every_step() -> None:
    onlooker = Strange()
    Strange.__module__ = "a.users"
    layer = _layer("GRU", torch.float64)
    assert all(map(torch.equal, _results(layer, torch.float64), _results(layer, torch.float64, onlooker)))
    assert onlooker.told == []
    assert sum("sigmoid" in name for name in onlooker.names) == 12


@pytest.mark.usefixtures("installed")
def test_packed_sequences_are_left_alone() -> None:
    layer, onlooker = _layer("LSTM", torch.float64), Onlooker()
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 5).double(), torch.ones(2, 5).double()])
    with onlooker:
        output, _ = layer(packed)
    assert torch.equal(output.data, layer(packed)[0].data)
    assert onlooker.told == []
