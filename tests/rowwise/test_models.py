"""Models as people write them are cut, however many rows a rank has, and give what they give unobserved."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from ronde.tensor.tree import leaves
from rowwise.models import MODELS
from rowwise.one_rank import observe

_MODES: dict[str, Any] = {
    "plain": torch.no_grad,
    "gradients": torch.enable_grad,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "rows", [8, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)]
)
def test_models_are_cut(name: str, rows: int, mode: str) -> None:
    around: AbstractContextManager[Any] = _MODES[mode]()
    torch.manual_seed(0)
    module, args = MODELS[name](rows)
    state = torch.get_rng_state()
    with around:
        observed = observe(module, args)
        assert observed.verdict.sharded, observed.verdict.reason
        torch.manual_seed(0)
        module, args = MODELS[name](rows)
        assert torch.equal(state, torch.get_rng_state())
        expected = module(*args)
    found = leaves(observed.output)
    for value, other in zip(leaves(expected), found, strict=True):
        assert torch.equal(value, other)


@pytest.mark.parametrize("name", ["ResNet", "GPT", "Swin"])
def test_gradients_are_those_of_an_unobserved_call(name: str) -> None:
    torch.manual_seed(0)
    module, args = MODELS[name](4)
    observe(module, args).output.square().sum().backward()
    found = [parameter.grad for parameter in module.parameters()]
    torch.manual_seed(0)
    module, args = MODELS[name](4)
    module(*args).square().sum().backward()
    for gradient, parameter in zip(found, module.parameters(), strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize("name", ["ConvNeXt", "GPT", "Translator"])
def test_models_are_cut_under_autocast(name: str) -> None:
    module, args = MODELS[name](8)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):  # the second finds weights that the first has cast
            observed = observe(module, args)
            assert observed.verdict.sharded, observed.verdict.reason
