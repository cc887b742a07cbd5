"""Generators of the process are left as they were, but for what other threads draw from them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2Model

from ronde.boundary.random_state import may_draw_on_host, preserved_random_state
from ronde.boundary.reach import Reach

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": np.random.rand,
    "torch": lambda: torch.rand(()).item(),
}


def _seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _beside(draw: Callable[[], Any], inside: Callable[[], Any], **options: Any) -> list[Any]:
    """What a thread draws before, within and after a piece in which generators are preserved."""
    _seeded()
    drawn: list[Any] = []
    turns = [threading.Event() for _ in range(3)]
    done = [threading.Event() for _ in range(3)]

    def work() -> None:
        for turn, end in zip(turns, done, strict=True):
            assert turn.wait(60)
            drawn.append(draw())
            end.set()

    def let(place: int) -> None:
        turns[place].set()
        assert done[place].wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    let(0)
    with preserved_random_state(**options):
        inside()
        let(1)
    let(2)
    thread.join()
    return drawn


@pytest.mark.parametrize("name", DRAWS)
def test_what_a_thread_draws_stays_drawn(name: str) -> None:
    drawn = _beside(DRAWS[name], lambda: None)
    _seeded()
    assert drawn == [DRAWS[name]() for _ in range(3)]


def test_torchs_generator_is_put_back_where_this_thread_drew() -> None:
    drawn = _beside(random.random, lambda: torch.rand(5))
    found = torch.rand(()).item()
    _seeded()
    assert found == torch.rand(()).item()
    assert drawn == [random.random() for _ in range(3)]


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_the_others_are_put_back_for_code_that_draws(name: str) -> None:
    draw = DRAWS[name]
    first, within, after = _beside(draw, draw, draws_on_host=True)
    _seeded()
    numbers = [draw() for _ in range(3)]
    assert (first, within) == (numbers[0], numbers[2])
    assert after == numbers[1]


@pytest.mark.parametrize("name", DRAWS)
def test_alone_all_are_put_back(name: str) -> None:
    _seeded()
    with preserved_random_state():
        DRAWS[name]()
    found = DRAWS[name]()
    _seeded()
    assert found == DRAWS[name]()


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + random.random()


class Bound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draw = random.random

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.draw()


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(())


@pytest.mark.parametrize(
    ("module", "draws"),
    [(Noisy(), True), (Bound(), True), (Plain(), False), (nn.Linear(2, 2), False)],
    ids=["by name", "bound", "torch's own", "a layer"],
)
def test_models_that_may_draw_from_the_hosts_generators(module: nn.Module, draws: bool) -> None:
    reach = Reach()
    for part in module.modules():
        reach.visit(part)
    assert may_draw_on_host(module, reach) is draws


def test_a_librarys_model_may_draw_by_functions_beside_it() -> None:
    """It draws masks from numpy's generator, in a function of its file."""
    module = nn.Sequential()
    module.__class__ = type("Own", (Wav2Vec2Model,), {})
    assert may_draw_on_host(module, Reach())
