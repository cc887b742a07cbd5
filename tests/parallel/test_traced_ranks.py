"""`torch.jit.trace` records what a model computes, and nothing of how parameters come together for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]


def traced() -> Iterator[str]:
    """Graphs of a model before and after a step, and after its type has been changed."""
    torch.manual_seed(5)
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(8, 3, 8, 8)
    for _ in range(2):
        yield str(torch.jit.trace(model, x).inlined_graph)  # which compares two graphs itself
        model(x).sum().backward()
        optimizer.step()
    model(x)
    model.double()
    yield str(torch.jit.trace(model, x.double()).inlined_graph)


def differing(rank: Rank, plan: str) -> list[str]:
    torch._C._jit_clear_class_registry()
    expected = list(traced())
    torch._C._jit_clear_class_registry()
    with rank.session(plan):
        found = list(traced())
    return [b for a, b in zip(expected, found, strict=True) if operations(a) != operations(b)]


def operations(graph: str) -> list[str]:
    return [line.partition(" = ")[2].partition("(")[0] for line in graph.splitlines()]


def used_later() -> list[torch.Tensor]:
    """A traced and a scripted model, of whose parameters a step has been made since."""
    torch.manual_seed(5)
    model: Any = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(24, 4, dtype=torch.float64)
    model(x).square().mean().backward()
    optimizer.step()
    copies = [torch.jit.trace(model, x[:8]), torch.jit.script(model)]
    model(x).square().mean().backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        return [each(x).sum() for each in (*copies, model)]


def saved_later() -> list[torch.Tensor]:
    """What files of a scripted model hold that is trained itself."""
    torch.manual_seed(5)
    model: Any = torch.jit.script(nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 3)).double())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(24, 4, dtype=torch.float64)
    found: list[torch.Tensor] = []

    def by_method(path: str) -> None:
        model.save(path)

    def by_function(path: str) -> None:
        torch.jit.save(model, path)

    def in_memory(path: str) -> None:
        with open(path, "wb") as file:
            file.write(model.save_to_buffer())

    for save in (by_method, by_function, in_memory):
        model(x).square().mean().backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            save(os.path.join(folder, "model.pt"))
            found.append(torch.jit.load(os.path.join(folder, "model.pt"))(x).sum())
    return found


def off_saved(rank: Rank, plan: str) -> float:
    expected = saved_later()
    with rank.session(plan):
        found = [value + 0 for value in saved_later()]
    return max(abs(float(a) - float(b)) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("plan", ["ddp", "zero3"])
def test_torchscript_that_is_trained_is_saved_whole(ranks: Ranks, plan: str) -> None:
    assert max(ranks(2, off_saved, plan)) < 1e-12


def off_later(rank: Rank, plan: str) -> float:
    expected = used_later()
    with rank.session(plan):
        found = [value + 0 for value in used_later()]
    return max(abs(float(a) - float(b)) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("plan", ["ddp", "zero3", "central"])
def test_torchscript_of_a_model_follows_its_updates(ranks: Ranks, plan: str) -> None:
    assert max(ranks(2, off_later, plan)) < 1e-12


@pytest.mark.parametrize("plan", ["ddp", "zero3", "central"])
def test_a_traced_model_has_torchs_own_graph(ranks: Ranks, plan: str) -> None:
    assert ranks(2, differing, plan) == [[]] * 2
