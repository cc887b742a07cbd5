"""Places of the script that all ranks come to, where a handler of a signal may run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ronde.testing.run_ranks import Rank


class Averaged(nn.Module):
    """Runs in parts: its body divides by the rows of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / len(x)


class Normalized(Dataset[Any]):
    """A module works on each sample."""

    def __init__(self) -> None:
        self.norm = nn.LayerNorm(4)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.norm(torch.full((3, 4), float(index))).detach()


def _places(rank: Rank) -> dict[str, int]:
    found: dict[str, int] = {}
    with rank.session() as session:
        context, at = session.context, ""

        def note() -> None:
            found[at] = found.get(at, 0) + context.is_at_place()

        context.at_place = note
        model, averaged, x = nn.Linear(4, 2), Averaged(), torch.randn(8, 4)
        at = "model"
        model(x)
        at = "in parts"
        averaged(x)
        at = "loader"
        list(DataLoader(Normalized(), 4))
        at = "hook"
        weight = torch.ones(4, requires_grad=True)
        twice = weight * 2
        twice.register_hook(lambda _: (model(x), None)[1])
        twice.sum().backward()
        at = "transform"
        torch.func.vmap(model)(x)
    return found


def test_places_are_neither_in_models_nor_in_samples_nor_in_a_backward(ranks: Any) -> None:
    right = {"model": 1, "in parts": 1, "loader": 3, "hook": 0, "transform": 0}
    assert ranks(2, _places) == [right] * 2


def _raised(rank: Rank) -> list[float]:
    """As by a handler: the script goes on as if the call had not been made."""
    results: list[float] = []
    with rank.session() as session:
        torch.manual_seed(0)
        model, x = nn.Linear(4, 2), torch.randn(8, 4)
        results.append(model(x).sum().item())

        def interrupt() -> None:
            session.context.at_place = None
            raise KeyboardInterrupt

        session.context.at_place = interrupt
        with pytest.raises(KeyboardInterrupt):
            model(x)
        results.append(model(x).sum().item())
        session.context.at_place = interrupt
        with pytest.raises(KeyboardInterrupt):
            next(iter(DataLoader(x, 4)))  # pyright: ignore[reportArgumentType]
        results.append(model(x).sum().item())
    return results


def test_what_is_raised_there_leaves_all_as_it_was(ranks: Any) -> None:
    first, second = ranks(2, _raised)
    assert first == second == [first[0]] * 3
