"""Random numbers that a forward pass draws by other means than torch's own on rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from hazards.harness import D, Hazard, Lambda, data, loader, modelled, train, unwatched

T = torch.Tensor
GENERATOR = np.random.default_rng(0)
PYTHON = random.Random(0)


def _two(function: Callable[[Any, T], T], **parts: Any) -> Any:
    return modelled(lambda: Lambda(function, a=nn.Linear(4, 3), b=nn.Linear(4, 3), **parts), epochs=4)


class Recurrent(nn.Module):
    """Dropout between layers, and a first state that is drawn, for as many rows as there are."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layers = kind(4, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.5)
        self.head = nn.Linear(10, 3)

    def forward(self, x: T) -> T:
        first = torch.randn(4, x.size(0), 5, dtype=D)
        state = (first, first) if isinstance(self.layers, nn.LSTM) else first
        return self.head(self.layers(x, state)[0][:, -1])


def _recurrent(kind: Any) -> Any:
    return modelled(lambda: Recurrent(kind), batches=loader(dataset=data(3, 4)))


class OwnGenerator(nn.Module):
    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.a, self.b, self.generator = nn.Linear(4, 3), nn.Linear(4, 3), generator

    def forward(self, x: T) -> T:
        chosen = self.generator.random() < 0.5
        return self.a(x) if chosen else self.b(x) - self.b(x).mean(0)


def _global_generators(use: Callable[[], float]) -> Any:
    def script() -> Iterator[Any]:
        global GENERATOR
        GENERATOR = np.random.default_rng(0)
        PYTHON.seed(0)
        model = Lambda(lambda m, x: m.a(x) if use() < 0.5 else m.b(x), a=nn.Linear(4, 3), b=nn.Linear(4, 3))
        yield from train(model, epochs=4)
        yield GENERATOR.random(), PYTHON.random()

    return script


def _torch_generator() -> Iterator[Any]:
    generator = torch.Generator().manual_seed(1)
    model = Lambda(
        lambda m, x: m.a(x + torch.randn(x.shape, generator=generator, dtype=D)), a=nn.Linear(4, 3)
    )
    yield from train(model)
    yield generator.get_state()


def _layer_dropped(m: Any, x: T) -> T:
    h = m.a(x)
    return h - m.b(x).mean(0) if m.training and random.random() < 0.5 else h


def _numpy_rows(m: Any, x: T) -> T:
    return m.a(x + torch.from_numpy(np.random.randn(*x.shape)))


def _numpy_row(m: Any, x: T) -> T:
    return m.a(x + torch.from_numpy(np.random.randn(4)))


class Stochastic(nn.Module):
    """Stochastic depth by row, and by batch."""

    def __init__(self, by_batch: bool) -> None:
        super().__init__()
        self.a, self.b, self.by_batch = nn.Linear(4, 3), nn.Linear(4, 3), by_batch

    def forward(self, x: T) -> T:
        if not self.training:
            return self.a(x) + self.b(x)
        shape = (1, 1) if self.by_batch else (len(x), 1)
        keep = (torch.rand(shape, dtype=x.dtype) < 0.6).to(x.dtype)
        return self.a(x) + self.b(x) * keep


class SometimesDraws(nn.Module):
    """Draws from the third call on, by what is in `state`."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.a, self.state = nn.Linear(4, 9), state
        self.b = nn.Linear(9, 3)

    def forward(self, x: T) -> T:
        h = self.a(x)
        return self.b(nn.functional.dropout(h, 0.4, self.training and len(self.state) > 2))


def _sometimes(state: Any) -> Iterator[Any]:
    model = SometimesDraws(state)
    yield from train(model, before=lambda m, step: m.state.append(step))


class Reseeds(nn.Module):
    """Draws the same numbers at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        torch.manual_seed(7)
        return self.a(x + torch.randn_like(x))


_HOST = "random numbers"


class Turned(nn.Module):
    """In memory its maps lie otherwise where there is but one of them, and the draws run through memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.maps, self.drop = nn.Linear(8, 8), nn.Conv2d(8, 8, 3, padding=1), nn.Dropout(0.3)

    def forward(self, x: T) -> T:
        turned = self.layer(x.flatten(2).transpose(1, 2)).transpose(-1, -2).reshape(x.shape)
        return self.drop(self.maps(turned + x))


HAZARDS = {
    "dropout of single rows": Hazard(
        modelled(Turned, batches=loader(4, data(8, 4, 4))), "right", "where a rank has a single row"
    ),
    "branch by random": Hazard(_two(_layer_dropped), "parts", _HOST),
    "branch by numpy": Hazard(
        _two(lambda m, x: m.a(x) if np.random.rand() < 0.5 else m.b(x)), "parts", _HOST
    ),
    "branch by torch": Hazard(_two(lambda m, x: m.a(x) if torch.rand(()) < 0.5 else m.b(x)), "parts", "host"),
    "rows by numpy": Hazard(_two(_numpy_rows), "parts", "depend on other rows"),
    "row by numpy": Hazard(_two(_numpy_row), "parts", _HOST),
    "own numpy generator": Hazard(
        modelled(lambda: OwnGenerator(np.random.default_rng(3)), epochs=4), "parts", _HOST
    ),
    "own python generator": Hazard(
        modelled(lambda: OwnGenerator(random.Random(3)), epochs=4), "parts", _HOST
    ),
    "global numpy generator": Hazard(_global_generators(lambda: GENERATOR.random()), "whole"),
    "global python generator": Hazard(_global_generators(lambda: PYTHON.random()), "whole"),
    "torch generator in a closure": Hazard(_torch_generator, "parts", "generator"),
    "stochastic depth by row": Hazard(modelled(lambda: Stochastic(False)), "whole"),
    "stochastic depth by batch": Hazard(modelled(lambda: Stochastic(True)), "whole"),
    "draws later": Hazard(lambda: _sometimes([]), "whole"),
    "draws later, unwatched": Hazard(lambda: _sometimes(unwatched()), "right"),
    "recurrent layers": Hazard(_recurrent(nn.LSTM), "whole"),
    "recurrent layers of another kind": Hazard(_recurrent(nn.GRU), "whole"),
    "seeds in forward": Hazard(modelled(Reseeds), "whole"),
    "dropout": Hazard(
        modelled(lambda: nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3))), "whole"
    ),
}
