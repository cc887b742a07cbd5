"""LARS and LAMB: their equations, step by step, and under plans as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ronde.optim import LAMB, LARS
from ronde.testing.run_ranks import Rank


def _parameters() -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(2)
    shapes = [(5, 3), (4,), (2, 2, 2)]
    values = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    return [nn.Parameter(value) for value in (*values, torch.zeros(3, dtype=torch.float64))]


def _gradients(parameters: list[nn.Parameter], step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    for place, parameter in enumerate(parameters):
        parameter.grad = torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * (place != 1)


def test_lars_is_its_equation() -> None:
    parameters = _parameters()
    optimizer = LARS(parameters, lr=2.0, momentum=0.8, weight_decay=0.01, trust_coefficient=0.02)
    expected = [value.detach().clone() for value in parameters]
    velocity = [torch.zeros_like(value) for value in expected]
    for step in range(50):
        _gradients(parameters, step)
        for place, (w, v) in enumerate(zip(expected, velocity, strict=True)):
            g: Any = parameters[place].grad
            norm, of_g = w.pow(2).sum().sqrt().item(), g.pow(2).sum().sqrt().item()
            own = 0.02 * norm / (of_g + 0.01 * norm) if norm and of_g else 1.0
            v.copy_(0.8 * v + 2.0 * own * (g + 0.01 * w))
            w -= v
        optimizer.step()
        for parameter, w in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.detach(), w, rtol=0, atol=1e-12)


def test_lamb_is_its_equation() -> None:
    parameters = _parameters()
    optimizer = LAMB(parameters, lr=0.05, weight_decay=0.1)
    expected = [value.detach().clone() for value in parameters]
    m = [torch.zeros_like(value) for value in expected]
    v = [torch.zeros_like(value) for value in expected]
    for step in range(50):
        _gradients(parameters, step)
        for place, w in enumerate(expected):
            g: Any = parameters[place].grad
            m[place] = 0.9 * m[place] + 0.1 * g
            v[place] = 0.999 * v[place] + 0.001 * g * g
            u = m[place] / (1 - 0.9 ** (step + 1)) / ((v[place] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-6)
            u = u + 0.1 * w
            norm, of_u = w.pow(2).sum().sqrt().item(), u.pow(2).sum().sqrt().item()
            w -= 0.05 * (norm / of_u if norm and of_u else 1.0) * u
        optimizer.step()
        for parameter, w in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.detach(), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [
    lambda values: LARS(values, lr=0.1, momentum=0.9, trust_coefficient=None),
    lambda values: torch.optim.SGD(values, lr=0.1, momentum=0.9),
])  # fmt: skip
def test_lars_without_trust_is_sgd_at_a_constant_rate(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    found, plain = _parameters(), _parameters()
    for parameters, optimizer in (
        (found, make(found)),
        (plain, torch.optim.SGD(plain, lr=0.1, momentum=0.9)),
    ):
        for step in range(5):
            _gradients(parameters, step)
            optimizer.step()
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_lamb_without_trust_is_adamw() -> None:
    found, plain = _parameters(), _parameters()
    ours = LAMB(found, lr=0.01, eps=1e-8, adapt=False)
    theirs = torch.optim.AdamW(plain, lr=0.01, eps=1e-8, weight_decay=0.0)
    for parameters, optimizer in ((found, ours), (plain, theirs)):
        for step in range(5):
            _gradients(parameters, step)
            optimizer.step()
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "options", "said"), [
    (LARS, {"lr": -1.0}, "lr=-1.0 is out of range"),
    (LARS, {"momentum": 1.0}, "momentum=1.0 is out of range; give a number from 0 and below 1"),
    (LAMB, {"betas": (0.9, 1.5)}, "beta=1.5"),
])  # fmt: skip
def test_hyper_parameters_have_a_range(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(_parameters(), **options)


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_sparse_gradients_are_refused(kind: Any) -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        kind(embedding.parameters()).step()


def _trained(rank: Rank, plan: str, name: str) -> torch.Tensor:
    with rank.session(plan):
        return _alone(name)


def _alone(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = {"LARS": LARS, "LAMB": LAMB}[name](model.parameters(), lr=0.1, weight_decay=0.01)
    inputs = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for _ in range(6):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
@pytest.mark.parametrize("plan", ["ddp", "zero1", "zero2", "zero3", "central"])
def test_any_plan_gives_what_one_device_does(ranks: Any, plan: str, name: str) -> None:
    for found in ranks(3, _trained, plan, name):
        torch.testing.assert_close(found, _alone(name), rtol=0, atol=1e-12)
