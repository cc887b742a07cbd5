"""Modules that treat rows one by one, each with its arguments: they are to be cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

ROWS = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        axes: the batch axis of each argument; None: the first of each.
        gradients: whether it is a matter of gradients only.
    """

    module: nn.Module
    args: tuple[Any, ...]
    axes: Sequence[int | None] | None = None
    gradients: bool = False


class Written(nn.Module):
    """A module whose forward is a function of it and its arguments.

    Args:
        held: its modules and buffers, and attributes of any other kind.
    """

    def __init__(self, function: Callable[..., Any], **held: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in held.items():
            if type(value) is torch.Tensor:
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def linear(width: int = 6, out: int = 6) -> nn.Linear:
    return nn.Linear(width, out)


def table() -> torch.Tensor:
    return torch.randn(ROWS, 6)


def series() -> torch.Tensor:
    return torch.randn(ROWS, 5, 6)


def images() -> torch.Tensor:
    return torch.randn(ROWS, 3, 16, 16)


def words() -> torch.Tensor:
    return torch.randint(0, 9, (ROWS, 5))


def mask() -> torch.Tensor:
    return torch.arange(5)[None] < torch.randint(1, 6, (ROWS, 1))


def of_table(function: Callable[..., Any], **held: Any) -> Case:
    """A function of a table, with a linear layer."""
    return Case(Written(function, **{"layer": linear(), **held}), (table(),))


def of_series(function: Callable[..., Any], **held: Any) -> Case:
    return Case(Written(function, **{"layer": linear(), **held}), (series(),))


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layers = kind(6, 8, 2, batch_first=True, dropout=0.2)
        self.head = linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(2, x.size(0), 8)
        state = (hidden, torch.zeros_like(hidden)) if isinstance(self.layers, nn.LSTM) else hidden
        out, _ = self.layers(x, state)
        return self.head(out[:, -1])


def attention_with_dropout(self: Any, x: torch.Tensor) -> torch.Tensor:
    query, key, value = (
        each.view(x.shape[0], 5, 2, 3).transpose(1, 2) for each in self.layer(x).chunk(3, -1)
    )
    seen = F.scaled_dot_product_attention(query, key, value, dropout_p=0.3, is_causal=True)
    return seen.transpose(1, 2).reshape(len(x), 5, 6)


def pooled_by_attention(self: Any, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    weight = self.layer(x).squeeze(-1).masked_fill(~seen, float("-inf")).softmax(-1)
    return (weight.unsqueeze(1) @ x).squeeze(1)


def scattered(self: Any, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    spread = torch.zeros(x.shape[0], 9).scatter_add(1, places, self.layer(x)[:, :5])
    return spread.gather(1, places) + spread.new_ones(len(x), 1)


def written_in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(x.size(0), 3, 6)
    made[:, 0] = x
    made[:, 1].copy_(self.layer(x))
    made[:, 2] += 1
    made.mul_(2)
    return made


def cells_in_a_loop(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden, found = x.new_zeros(x.size(0), 8), []
    for step in range(x.size(1)):
        hidden = self.cell(x[:, step], hidden)
        found.append(hidden)
    return torch.stack(found, 1)


def by_flat_places(self: Any, x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    rows, steps, width = x.shape
    return self.layer(x).view(rows * steps, width)[torch.arange(rows) * steps + last]


def two_views(self: Any, x: torch.Tensor) -> torch.Tensor:
    first, second = self.layer(torch.cat([x, x.flip(1)], 0)).chunk(2)
    return first * second


def u_shaped(self: Any, x: torch.Tensor) -> torch.Tensor:
    wide = F.relu(self.down(x))
    deep = F.relu(self.middle(F.max_pool2d(wide, 2)))
    return self.up(torch.cat([F.interpolate(deep, scale_factor=2, mode="bilinear"), wide], 1))


def autoencoded(self: Any, x: torch.Tensor) -> Any:
    mean, spread = self.encode(x.flatten(1)).chunk(2, 1)
    code = mean + torch.randn_like(spread) * (spread * 0.5).exp()
    return torch.sigmoid(self.decode(self.widen(code).view(-1, 8, 4, 4))), mean, spread


def transformed(self: Any, x: torch.Tensor) -> torch.Tensor:
    affine = self.layer(x.mean((2, 3))).view(-1, 2, 3)
    return F.grid_sample(x, F.affine_grid(affine, list(x.size()), align_corners=False), align_corners=False)


def called_and_counted(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls += 1
    return self.layer(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.T, x.T @ gradients[0]


class Rotation(nn.Module):
    """Positions by rotating pairs of features."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, steps, width = x.shape
        angle = torch.outer(torch.arange(steps).float(), torch.ones(width // 2))
        turned = torch.polar(torch.ones_like(angle), angle)
        pairs = torch.view_as_complex(self.layer(x).reshape(rows, steps, width // 2, 2))
        return torch.view_as_real(pairs * turned).flatten(2)


def autocast(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return self.layer(x)


def gradient_inside(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        energy = self.layer(place).tanh().sum()
        return torch.autograd.grad(energy, place, create_graph=True)[0]


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False, **options)


CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(
        nn.Sequential(linear(6, 8), nn.ReLU(True), nn.Dropout(0.5), linear(8, 8)), (table(),)
    ),
    "batch norm": lambda: Case(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.AvgPool2d(14)), (images(),)
    ),
    "batch norm, momentum None": lambda: Case(nn.BatchNorm1d(6, momentum=None), (table(),)),
    "batch norm of steps": lambda: of_series(
        lambda self, x: self.norm(self.layer(x).flatten(0, 1)).view_as(x), norm=nn.BatchNorm1d(6)
    ),
    "channels last": lambda: Case(
        nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.Hardswish()).to(
            memory_format=torch.channels_last
        ),
        (images().contiguous(memory_format=torch.channels_last),),
    ),
    "lstm": lambda: Case(nn.LSTM(6, 8, batch_first=True), (series(),)),
    "lstm, time first": lambda: Case(
        nn.LSTM(6, 8, 2, bidirectional=True), (torch.randn(5, ROWS, 6),), axes=[1]
    ),
    "gru, as long as wide": lambda: Case(nn.GRU(6, 8), (torch.randn(ROWS, ROWS, 6),), axes=[1]),
    "lstm with a state": lambda: Case(Recurrent(nn.LSTM), (series(),)),
    "gru with a state": lambda: Case(Recurrent(nn.GRU), (series(),)),
    "cells in a loop": lambda: Case(Written(cells_in_a_loop, cell=nn.GRUCell(6, 8)), (series(),)),
    "encoder": lambda: Case(encoder(), (torch.randn(ROWS, 5, 8),)),
    "encoder in evaluation": lambda: Case(
        Written(lambda self, x, seen: self.layers(x, src_key_padding_mask=~seen), layers=encoder()).eval(),
        (torch.randn(ROWS, 5, 8), mask()),
    ),
    "transformer, time first": lambda: Case(
        nn.Transformer(8, 2, 1, 1, 16), (torch.randn(5, ROWS, 8), torch.randn(4, ROWS, 8)), axes=[1, 1]
    ),
    "attention with added keys": lambda: of_series(
        lambda self, x: self.seen(x, x, x)[0],
        seen=nn.MultiheadAttention(6, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True),
    ),
    "attention with dropout": lambda: of_series(attention_with_dropout, layer=linear(6, 18)),
    "norms": lambda: Case(
        nn.Sequential(
            nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LayerNorm(3), nn.LocalResponseNorm(2)
        ),
        (torch.randn(ROWS, 4, 3, 3),),
    ),
    "group norm, as many channels": lambda: Case(nn.GroupNorm(2, ROWS), (torch.randn(ROWS, ROWS, 2, 2),)),
    "u-net": lambda: Case(
        Written(
            u_shaped,
            down=nn.Conv2d(3, 4, 3, 1, 1),
            middle=nn.Conv2d(4, 4, 3, 1, 1),
            up=nn.Conv2d(8, 2, 1),
        ),
        (images(),),
    ),
    "embedding": lambda: Case(
        Written(lambda self, x: self.table(x).mean(1), table=nn.Embedding(9, 4, padding_idx=0)), (words(),)
    ),
    "embedding bag": lambda: Case(nn.EmbeddingBag(9, 4, mode="mean"), (words(),)),
    "pooling by attention": lambda: Case(
        Written(pooled_by_attention, layer=linear(6, 1)), (series(), mask())
    ),
    "spatial transformer": lambda: Case(Written(transformed, layer=linear(3, 6)), (images(),)),
    "autoencoder": lambda: Case(
        Written(
            autoencoded, encode=linear(768, 16), widen=linear(8, 128), decode=nn.ConvTranspose2d(8, 3, 4, 4)
        ),
        (images(),),
    ),
    "einsum": lambda: of_series(
        lambda self, x: torch.einsum("btc,bsc,cd->bstd", x, self.layer(x), self.layer.weight)
    ),
    "weight norm": lambda: Case(nn.utils.parametrizations.weight_norm(linear()), (table(),)),
    "spectral norm": lambda: Case(nn.utils.parametrizations.spectral_norm(linear()), (table(),)),
    "gate of nought": lambda: of_table(lambda self, x: x + self.gate * self.layer(x), gate=torch.zeros(1)),
    "scatter and gather": lambda: Case(Written(scattered, layer=linear()), (table(), words())),
    "largest features": lambda: of_table(lambda self, x: self.layer(x).topk(3, -1)[0]),
    "written in place": lambda: of_table(written_in_place),
    "last step of each": lambda: Case(
        Written(lambda self, x, last: self.layer(x)[torch.arange(len(x)), last], layer=linear()),
        (series(), torch.randint(0, 5, (ROWS,))),
    ),
    "flat places": lambda: Case(
        Written(by_flat_places, layer=linear()), (series(), torch.randint(0, 5, (ROWS,)))
    ),
    "two views": lambda: of_table(two_views),
    "beams": lambda: of_series(lambda self, x: self.layer(x.repeat_interleave(3, 0)).unflatten(0, (-1, 3))),
    "function of its own": lambda: of_table(lambda self, x: Doubled.apply(x, self.layer.weight)),
    "checkpoint": lambda: of_table(
        lambda self, x: checkpoint(self.layer, x, use_reentrant=False),
        layer=nn.Sequential(linear(), nn.Dropout(0.1)),
    ),
    "reentrant checkpoint": lambda: of_table(
        lambda self, x: checkpoint(self.layer, self.first(x), use_reentrant=True),
        first=linear(),
        layer=nn.Sequential(linear(), nn.Tanh()),
    ),
    "autocast": lambda: of_table(autocast, layer=nn.Sequential(linear(6, 64), nn.GELU(), linear(64, 6))),
    "TorchScript": lambda: Case(torch.jit.script(nn.Sequential(linear(), nn.ReLU())), (table(),)),
    "fourier": lambda: of_table(lambda self, x: torch.fft.rfft(self.layer(x)).abs()),
    "windows' spectra": lambda: Case(
        Written(
            lambda self, x: torch.stft(x, 16, 8, window=self.window, return_complex=True).abs()[:, :8],
            window=torch.hann_window(16),
        ),
        (torch.randn(ROWS, 64),),
    ),
    "rotation": lambda: Case(Rotation(), (series(),)),
    "distances within": lambda: of_series(lambda self, x: torch.cdist(x, x).triu() @ x),
    "positions": lambda: of_series(
        lambda self, x: x + self.table(torch.arange(x.shape[1]).unsqueeze(0).repeat(x.shape[0], 1)),
        table=nn.Embedding(5, 6),
    ),
    "token for all": lambda: of_series(
        lambda self, x: torch.cat([self.token.expand(len(x), -1, -1), x], 1), token=torch.randn(1, 1, 6)
    ),
    "mask for all": lambda: of_series(
        lambda self, x: x.masked_fill(torch.ones(x.shape[0], 5, 5).tril()[:, :, 4:] == 0, 0.0)
    ),
    "data and detach": lambda: of_table(
        lambda self, x: self.layer(x) * self.layer(x).data + self.layer(x).detach()
    ),
    "as many as there are": lambda: of_table(lambda self, x: self.layer(x)[: x.shape[0]]),
    "if there are rows": lambda: of_table(lambda self, x: self.layer(x) if x.shape[0] > 0 else x),
    "unfold and fold": lambda: Case(
        Written(lambda self, x: F.fold(F.unfold(x, 3, padding=1), (16, 16), 3, padding=1)), (images(),)
    ),
    "pixels moved": lambda: Case(
        Written(
            lambda self, x: F.pad(F.pixel_shuffle(self.layer(x), 2), (1, 1)).roll(2, -1),
            layer=nn.Conv2d(3, 4, 1),
        ),
        (images(),),
    ),
    "filled with a value of its own": lambda: of_table(
        lambda self, x: (
            x * x.new_full((6,), self.layer.bias[0].detach())
            + torch.full((len(x), 6), fill_value=self.layer.bias[1].detach())
        )
    ),
    "calls counted": lambda: of_table(called_and_counted, calls=0),
    "gradient inside": lambda: of_table(gradient_inside),
    "distribution": lambda: of_table(
        lambda self, x: torch.distributions.Normal(self.layer(x), 1.0).log_prob(x)
    ),
    "one-hot": lambda: Case(Written(lambda self, x: F.one_hot(x, 9).float()), (words(),)),
    "gumbel": lambda: of_table(lambda self, x: F.gumbel_softmax(self.layer(x))),
}
