"""Batches on the second axis, which nobody named: found where it is the batch, and only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hazards.harness import D, Hazard, Lambda

T = torch.Tensor
TIME, BATCH = 11, 8


def _script(
    make: Callable[[], nn.Module],
    call: Callable[[Any, T, Any], tuple[T, Any]],
    *,
    time: int = TIME,
    batch: int = BATCH,
) -> Iterator[Any]:
    """Trains on windows `[time, batch, 4]`, each with what `call` carried along from the one before."""
    model = make().double()
    data = torch.randn(4 * time, batch, 4, generator=torch.Generator().manual_seed(7), dtype=D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    carried: Any = None
    for start in range(0, len(data), time):
        x = data[start : start + time]
        out, carried = call(model, x, carried)
        loss = F.mse_loss(out.flatten(1), x.flatten(1)[:, : out.flatten(1).shape[1]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
        yield carried
    yield [value.detach().clone() for value in model.parameters()]


def _scripted(make: Callable[[], nn.Module], call: Any = None, **sizes: int) -> Callable[[], Iterator[Any]]:
    return lambda: _script(make, call or (lambda model, x, _: (model(x), None)), **sizes)


def _recurrent(kind: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Lambda(lambda m, x, h=None: m.net(x, h), net=kind(4, 4, num_layers=2, **options))


def _detached(state: Any) -> Any:
    return tuple(value.detach() for value in state) if isinstance(state, tuple) else state.detach()


def _carrying(model: Any, x: T, state: Any) -> tuple[T, Any]:
    out, state = model(x) if state is None else model(x, state)
    return out, _detached(state)


def _given(model: Any, x: T, state: Any) -> tuple[T, Any]:
    """The first state is made by the script: zeros `[layers, batch, features]`."""
    return _carrying(model, x, x.new_zeros(2, x.shape[1], 4) if state is None else state)


def _transformer(dropout: float = 0.1) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return Lambda(lambda m, x, mask=None, pad=None: m.net(x, mask, pad), net=encoder)


def _masked(model: Any, x: T, _: Any) -> tuple[T, Any]:
    return model(x, nn.Transformer.generate_square_subsequent_mask(len(x), dtype=D)), None


def _padded(model: Any, x: T, _: Any) -> tuple[T, Any]:
    pad = torch.zeros(x.shape[1], len(x), dtype=torch.bool)
    pad[1::2, -2:] = True
    return model(x, None, pad), None


def _seen_far(distance: int) -> Callable[[], nn.Module]:
    """The first axis is mixed; on the second, columns see each other, but only from far away."""

    def forward(m: Any, x: T) -> T:
        y = x - x.mean(0)
        return m.scale * (y + torch.cat([torch.zeros_like(y[:, :distance]), y[:, :-distance]], 1))

    return lambda: Lambda(forward, scale=nn.Parameter(torch.ones(4)))


def _by_place(m: Any, x: T) -> T:
    """The first axis is mixed; on the second, what is done depends on the place, beyond the sixth."""
    y = (x - x.mean(0)) * m.scale
    return torch.cat([y[:, :6], y[:, 6:] * 2], 1)


def _whispered(m: Any, x: T) -> T:
    """As far away, and smaller than rounding until it is not."""
    y = x - x.mean(0)
    return y * m.scale + m.gate * y.roll(6, 1)


class _Charged(nn.Module):
    """A neuron that keeps its charge behind the last step, as spiking networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.charge = nn.Linear(4, 4), torch.zeros(())

    def forward(self, x: T) -> T:
        self.charge, out = torch.zeros_like(x[0]), []
        for now in self.net(x):
            self.charge = self.charge.detach() * 0.5 + now
            out.append(self.charge.sigmoid())
        return torch.stack(out).mean(0)


def _charging(model: Any, x: T, _: Any) -> tuple[T, Any]:
    out = model(x)  # [batch, 4]
    return out.flatten()[: 4 * len(x)].view(-1, 4), model.charge.detach().clone()


HAZARDS: dict[str, Hazard] = {
    "lstm": Hazard(_scripted(lambda: Lambda(lambda m, x: m.net(x)[0], net=nn.LSTM(4, 4))), "found"),
    "lstm that carries its state": Hazard(_scripted(_recurrent(nn.LSTM), _carrying), "found"),
    "lstm with dropout": Hazard(_scripted(_recurrent(nn.LSTM, dropout=0.3), _carrying), "found"),
    "gru with a state of the script's": Hazard(_scripted(_recurrent(nn.GRU), _given), "found"),
    "as many steps as rows": Hazard(_scripted(_recurrent(nn.GRU), _given, time=8), "found"),
    "as many layers as steps": Hazard(_scripted(_recurrent(nn.GRU), _given, time=2), "found"),
    # Cut as well; of a first axis of one nothing is said, which may be a batch of one sequence.
    "one step at a time": Hazard(_scripted(_recurrent(nn.GRU), _given, time=1), "whole"),
    "transformer": Hazard(_scripted(_transformer), "found"),
    "transformer with a mask": Hazard(_scripted(_transformer, _masked), "found"),
    "a mask as long as the batch": Hazard(_scripted(_transformer, _masked, time=8), "found"),
    "transformer with padding": Hazard(_scripted(_transformer, _padded), "found"),
    "flattened": Hazard(
        _scripted(
            lambda: Lambda(lambda m, x: m.b(m.net(x)[0].reshape(-1, 4)), net=nn.GRU(4, 4), b=nn.Linear(4, 4)),
            lambda model, x, _: (model(x).view(x.shape), None),
        ),
        "found",
    ),
    "columns that see each other from afar": Hazard(_scripted(_seen_far(6)), "parts", "depend on other rows"),
    "columns by place": Hazard(
        _scripted(lambda: Lambda(_by_place, scale=nn.Parameter(torch.ones(4)))),
        "parts",
        "depend on other rows",
    ),
    "columns that whisper": Hazard(
        _scripted(
            lambda: Lambda(
                _whispered, scale=nn.Parameter(torch.ones(4)), gate=nn.Parameter(torch.tensor(1e-30))
            )
        ),
        "parts",
        "depend on other rows",
    ),
    "a state that is kept": Hazard(_scripted(_Charged, _charging, time=5), "parts", "depend on other rows"),
    "first axis where both would do": Hazard(
        _scripted(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh())), "whole"
    ),
}
