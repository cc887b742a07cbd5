"""Methods called past a module's own call run in parts, and that is said once for a class, if it matters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ronde.testing.run_ranks import Rank

ROWS = 8


class Net(nn.Module):
    """Two layers, of which neither is nearly all of it."""

    def __init__(self, *, last: int = 4) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(self.encode(x)))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).relu()

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x) for layer in (self.first, self.second)])

    @torch.enable_grad()
    def decorated(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x)

    def by_helpers(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.encode(x))

    def loss_of_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).square()

    def through_call(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


class Sized(Net):
    """Sends an example through its layers to know their size."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(self.score(torch.ones(ROWS, 4)).shape[-1], 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(super().forward(x))


class Adapter(Net):
    """Is called for something else: an answer without a gradient."""

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).detach()


class Wrapper(nn.Module):
    """Holds a model, as a class of a library's does for training."""

    def __init__(self, kind: type[nn.Module] = Net) -> None:
        super().__init__()
        self.net, self.scale = kind(), nn.Parameter(torch.ones(()))

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * self.scale


class Beside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net.score(x).sum()


def _layers(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.second(net.first(x))


def _called(rank: Rank, make: Callable[[], nn.Module], call: Callable[..., torch.Tensor]) -> list[str]:
    with rank.session() as session:
        torch.manual_seed(0)
        model, x = make(), torch.ones(ROWS, 4)
        for _ in range(2):
            if (value := call(model, x)).requires_grad:
                value.sum().backward()
        return [note for note in session.summary().notes if "called past" in note]


def _forward(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.forward(x)


def _score(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.score(x)


def _both(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.score(x).sum() + model.forward(x).sum()


def _decorated(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.decorated(x)


def _by_helpers(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.by_helpers(x)


def _loss_of_forward(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.loss_of_forward(x)


def _by_itself(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def _through_call(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.through_call(x)


def _one_layer(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.encode(x)


def _step(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.training_step(x)


def _one_row(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.forward(x[None])


def _by_a_library(model: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model.score, x, use_reentrant=False)


def _evaluated(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.forward(x)


def _trained_after_that(model: Any, x: torch.Tensor) -> torch.Tensor:
    _evaluated(model, x)
    return model.forward(x)


_PAST_FORWARD = (
    "{} runs in parts, as its forward is called past its own call: the modules inside it run on shards "
    "one by one, right but with less speed-up; write net(...) in place of net.forward(...)"
)
_PAST = (
    "Net runs in parts where {} is called past its forward: the modules inside it run on shards one by "
    "one, right but with less speed-up; to run as one piece such a method must be called from forward, and "
    "that by net(...)"
)


@pytest.mark.parametrize(
    ("make", "call", "said"),
    [
        (Net, _forward, [_PAST_FORWARD.format("Net")]),
        (Sized, _forward, [_PAST_FORWARD.format("Sized")]),
        (functools.partial(nn.Sequential, nn.Linear(4, 4), nn.Linear(4, 4)), _forward, ["Sequential"]),
        (Net, _both, [_PAST_FORWARD.format("Net")]),
        (Net, _trained_after_that, [_PAST_FORWARD.format("Net")]),
        (Net, _score, [_PAST.format("score")]),
        (Net, _decorated, [_PAST.format("decorated")]),
        (Net, _by_helpers, [_PAST.format("by_helpers")]),
        (Net, _loss_of_forward, [_PAST_FORWARD.format("Net")]),
        # Called as it is meant to be, by whatever way.
        (Net, _by_itself, []),
        (Net, _through_call, []),
        (Net, _layers, []),
        (Sized, _by_itself, []),
        (Beside, _by_itself, []),
        # As good as one piece.
        (functools.partial(Net, last=100), _forward, []),
        (Net, _one_layer, []),
        (Wrapper, _step, []),
        (Net, _one_row, []),
        # Nothing to advise, not for the user to change, and not training.
        (Adapter, _forward, []),
        (Net, _by_a_library, []),
        (Net, _evaluated, []),
    ],
)
def test_a_method_called_past_the_call_is_said(
    ranks: Any, make: Callable[[], nn.Module], call: Callable[..., torch.Tensor], said: list[str]
) -> None:
    for notes in ranks(2, _called, make, call):
        assert len(notes) == len(said)
        assert all(note.startswith(part) for note, part in zip(notes, said, strict=True))
