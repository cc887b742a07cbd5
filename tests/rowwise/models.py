"""Models as people write them, small: each with the arguments of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, tuple[Any, ...]]


class Block(nn.Module):
    """Of a residual network."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.relu = nn.ReLU(inplace=True)
        self.aside: nn.Module | None = None
        if stride > 1 or width != out:
            self.aside = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = x if self.aside is None else self.aside(x)
        x = self.relu(self.norms[0](self.first(x)))
        x = self.norms[1](self.second(x))
        x += same
        return self.relu(x)


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    stages: list[nn.Module] = []
    before = width
    for stage in range(4):
        for place in range(2):
            stages.append(Block(before, width * 2**stage, 2 if stage and not place else 1))
            before = width * 2**stage
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, classes),
    )


class Squeezed(nn.Module):
    """An inverted bottleneck with gates, as in MobileNetV3 and EfficientNet."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.widen = nn.Sequential(nn.Conv2d(width, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.gates = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 4, 1), nn.ReLU(), nn.Conv2d(4, wide, 1), nn.Hardsigmoid()
        )
        self.narrow = nn.Sequential(nn.Conv2d(wide, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.depth(self.widen(x))
        made = self.narrow(made * self.gates(made))
        if self.training:  # stochastic depth
            kept = torch.empty([made.shape[0], 1, 1, 1]).bernoulli_(0.8).div_(0.8)
            made = made * kept
        return x + made


class NormOfChannels(nn.LayerNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = NormOfChannels(width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.mix(self.norm(self.depth(x)).permute(0, 2, 3, 1)) * self.scale
        return x + made.permute(0, 3, 1, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, steps, width = x.size()
        query, key, value = (
            each.view(rows, steps, self.heads, width // self.heads).transpose(1, 2)
            for each in self.all(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).contiguous().view(rows, steps, width))


class Layer(nn.Module):
    """Of a transformer."""

    def __init__(self, width: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads, **options)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(options.get("dropout", 0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.dropout(self.mix(self.norms[1](x)))


class GPT(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, longest: int, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads, causal=True, dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.size(1), dtype=torch.long, device=x.device)
        made = self.words(x) + self.places(places)
        for layer in self.layers:
            made = layer(made)
        return self.head(self.norm(made))


class VisionTransformer(nn.Module):
    def __init__(self, side: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.patches(x).flatten(2).transpose(1, 2)
        made = torch.cat([self.token.expand(x.shape[0], -1, -1), made], 1) + self.places
        return self.head(self.layers(made)[:, 0])


class WindowLayer(nn.Module):
    """Of a Swin transformer: attention within windows, which may be shifted."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.biases = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        where = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij"))
        apart = where.flatten(1)[:, :, None] - where.flatten(1)[:, None]
        apart = (apart[0] + window - 1) * (2 * window - 1) + apart[1] + window - 1
        self.register_buffer("apart", apart)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def _windows(self, x: torch.Tensor) -> torch.Tensor:
        rows, high, wide, width = x.shape
        size = self.window
        x = x.view(rows, high // size, size, wide // size, size, width)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, width)

    def _mask(self, high: int, wide: int) -> torch.Tensor:
        number = torch.zeros(1, high, wide, 1)
        spans = (slice(-self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for i, rows in enumerate(spans):
            for j, columns in enumerate(spans):
                number[:, rows, columns] = 3 * i + j
        number = self._windows(number).squeeze(-1)
        apart = number.unsqueeze(1) - number.unsqueeze(2)
        return torch.zeros_like(apart).masked_fill(apart != 0, -100.0)

    def _attention(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        many, length, width = x.shape
        query, key, value = (
            self.all(x).reshape(many, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        score = (query * (width // self.heads) ** -0.5) @ key.transpose(-2, -1)
        bias = self.biases[self.apart.view(-1)].view(length, length, -1).permute(2, 0, 1)
        score = score + bias.unsqueeze(0)
        if mask is not None:
            windows = mask.shape[0]
            score = score.view(many // windows, windows, self.heads, length, length)
            score = (score + mask.unsqueeze(1).unsqueeze(0)).view(-1, self.heads, length, length)
        return self.out((score.softmax(-1) @ value).transpose(1, 2).reshape(many, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, high, wide, width = x.shape
        size, same, mask = self.window, x, None
        x = self.norms[0](x)
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
            mask = self._mask(high, wide)
        x = self._attention(self._windows(x), mask)
        x = x.view(rows, high // size, wide // size, size, size, width)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(rows, high, wide, width)
        if self.shift:
            x = torch.roll(x, (self.shift, self.shift), (1, 2))
        x = same + x
        return x + self.mix(self.norms[1](x))


class Merging(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.narrow = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.narrow(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    def __init__(self, width: int, depths: tuple[int, ...], heads: tuple[int, ...], window: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        layers: list[nn.Module] = []
        for stage, (depth, many) in enumerate(zip(depths, heads, strict=True)):
            here = width * 2**stage
            if stage:
                layers.append(Merging(here // 2))
            layers += [
                WindowLayer(here, many, window, window // 2 if place % 2 else 0) for place in range(depth)
            ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width * 2 ** (len(depths) - 1), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.patches(x).permute(0, 2, 3, 1)).mean((1, 2)))


class UNet(nn.Module):
    """Of a diffusion model: it is told the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.Conv2d(width, width, 3, 2, 1)
        self.norm = nn.GroupNorm(4, width)
        self.middle = nn.Conv2d(width, width, 3, 1, 1)
        self.up = nn.ConvTranspose2d(width, width, 2, 2)
        self.last = nn.Conv2d(2 * width, 3, 3, 1, 1)
        self.width = width

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(self.width // 2) / (self.width // 2))
        angles = time.float()[:, None] * rates[None]
        told = self.time(torch.cat([angles.sin(), angles.cos()], -1))[:, :, None, None]
        wide = self.first(x) + told
        deep = F.silu(self.norm(self.middle(F.silu(self.down(wide))) + told))
        return self.last(torch.cat([self.up(deep), wide], 1))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 16))
        self.decode = nn.Sequential(
            nn.Linear(8, 2048), nn.Unflatten(1, (8, 16, 16)), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1)
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return {"made": torch.sigmoid(self.decode(code)), "mean": mean, "log_variance": log_variance}


class Dense(nn.Module):
    """Of a DenseNet."""

    def __init__(self, width: int, grows: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width + i * grows),
                nn.ReLU(inplace=True),
                nn.Conv2d(width + i * grows, grows, 3, 1, 1),
            )
            for i in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for layer in self.layers:
            made.append(layer(torch.cat(made, 1)))
        return torch.cat(made, 1)


class Shuffled(nn.Module):
    """Of a ShuffleNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width // 2, width // 2, 1), nn.BatchNorm2d(width // 2), nn.ReLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=1)
        x = torch.cat((first, self.branch(second)), dim=1)
        rows, width, high, wide = x.size()
        return x.view(rows, 2, width // 2, high, wide).transpose(1, 2).contiguous().view(rows, -1, high, wide)


class Mixer(nn.Module):
    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.along = nn.Sequential(nn.Linear(steps, 16), nn.GELU(), nn.Linear(16, steps))
        self.across = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.along(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.across(self.norms[1](x))


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, padding_idx=0)
        self.layers = nn.ModuleList(nn.Conv1d(8, 4, size) for size in (2, 3, 4))
        self.head = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.words(x).transpose(1, 2)
        return self.head(torch.cat([layer(made).relu().max(dim=2).values for layer in self.layers], 1))


class Translator(nn.Module):
    """Torch's transformer, with masks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layers = nn.Transformer(16, 2, 2, 2, 32, 0.1, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        hidden = source == 0
        made = self.layers(
            self.words(source),
            self.words(target),
            tgt_mask=mask,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_key_padding_mask=target == 0,
        )
        return self.head(made)


class Attending(nn.Module):
    """An encoder and a decoder of GRUs, with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.encoder, self.cell = nn.GRU(8, 8, batch_first=True), nn.GRUCell(16, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen, last = self.encoder(self.words(source))
        hidden, made = last[0], []
        for step in range(target.size(1)):
            weight = torch.softmax((seen @ hidden.unsqueeze(2)).squeeze(2), 1)
            context = torch.bmm(weight.unsqueeze(1), seen).squeeze(1)
            hidden = self.cell(torch.cat([self.words(target[:, step]), context], 1), hidden)
            made.append(self.head(hidden))
        return torch.stack(made, dim=1)


class Recommender(nn.Module):
    """Tables of features, and products of each two of them (DeepFM, DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bottom, self.top = nn.Linear(4, 8), nn.Linear(8 + 6, 1)

    def forward(self, numbers: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        made = [self.bottom(numbers)] + [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        each = torch.stack(made, 1)
        i, j = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([made[0], (each @ each.transpose(1, 2))[:, i, j]], 1)).squeeze(-1)


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.turn = nn.Linear(16, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turn = self.turn(self.each(x).max(2)[0])
        same = torch.eye(3).flatten().view(1, 9).repeat(x.size(0), 1)
        turned = torch.bmm((turn + same).view(-1, 3, 3), x)
        return torch.max(self.each(turned), 2, keepdim=True)[0].view(-1, 16)


class Graphs(nn.Module):
    """A network on dense graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        edges = edges + torch.eye(edges.size(-1))
        share = edges.sum(-1).clamp(min=1).rsqrt()
        edges = share.unsqueeze(-1) * edges * share.unsqueeze(-2)
        return self.layer(edges @ nodes).relu().mean(1)


class StateSpace(nn.Module):
    """A scan over steps, as in Mamba."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.randn(6, 4))
        self.delta, self.enter, self.leave = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        delta, enter, leave = F.softplus(self.delta(x)), self.enter(x), self.leave(x)
        fall = torch.exp(delta.unsqueeze(-1) * -self.rates.exp())
        push = (delta * x).unsqueeze(-1) * enter.unsqueeze(2)
        state, made = torch.zeros(x.shape[0], 6, 4, device=x.device), []
        for step in range(x.shape[1]):
            state = fall[:, step] * state + push[:, step]
            made.append(torch.einsum("bdn,bn->bd", state, leave[:, step]))
        return torch.stack(made, 1)


class Experts(nn.Module):
    """All experts for all, weighted by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, which = self.gate(x).softmax(-1).topk(2, dim=-1)
        weight = torch.zeros(x.shape[0], 3).scatter(1, which, best)
        return torch.einsum("be,bed->bd", weight, torch.stack([each(x) for each in self.experts], 1))


class Dilated(nn.Module):
    """Of a WaveNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(6, 12, 2, dilation=2**i) for i in range(3))
        self.out = nn.Conv1d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            gate, value = layer(F.pad(x, (2**i, 0))).chunk(2, 1)
            x = x + self.out(torch.sigmoid(gate) * torch.tanh(value))
        return x


class Latents(nn.Module):
    """Of a Perceiver: learnt queries look at the input."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 8))
        self.seen = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.latents.unsqueeze(0).repeat(x.shape[0], 1, 1)
        return self.seen(query, x, x, need_weights=False)[0].mean(dim=1)


class Fields(nn.Module):
    """A network of a point in space, as in NeRF."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(39, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, points: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
        waves = [f(points * 2.0**i) for i in range(6) for f in (torch.sin, torch.cos)]
        made = self.layers(torch.cat([points, *waves], -1))
        colour, density = made[..., :3].sigmoid(), made[..., 3].relu()
        far = torch.full_like(depths[..., :1], 1e10)
        alpha = 1 - torch.exp(-density * torch.cat([depths[..., 1:] - depths[..., :-1], far], -1))
        past = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        return ((alpha * past).unsqueeze(-1) * colour).sum(-2)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        a, b = self.net(torch.cat([first, second])).chunk(2)
        return F.cosine_similarity(a, b)


class Flow(nn.Module):
    """A coupling layer of a normalizing flow, and the logarithm of its determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6))
        self.register_buffer("order", torch.tensor([5, 4, 3, 2, 1, 0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = x.index_select(1, self.order).chunk(2, 1)
        scale, shift = self.net(first).chunk(2, 1)
        made = torch.cat([first, second * scale.exp() + shift], 1)
        prior = torch.distributions.Normal(torch.zeros(6), torch.ones(6))
        return made, prior.log_prob(made).sum(-1) + scale.sum(-1)


class Policy(nn.Module):
    """Of an actor that draws actions, and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(6, 4), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.distributions.Categorical(logits=self.actor(x))
        action = chosen.sample()
        return action, chosen.log_prob(action), chosen.entropy(), self.critic(x).squeeze(-1)


class Quantized(nn.Module):
    """The nearest codes, with gradients straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(16, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        which = torch.cdist(x, self.codes.weight).argmin(-1)
        code = self.codes(which)
        return x + (code - x).detach(), which


def words(rows: int, steps: int = 12) -> torch.Tensor:
    return torch.randint(1, 50, (rows, steps))


def padded(rows: int, steps: int = 12) -> torch.Tensor:
    made = words(rows, steps)
    return made.masked_fill(torch.arange(steps)[None] >= torch.randint(4, steps + 1, (rows, 1)), 0)


def images(rows: int, side: int = 32) -> torch.Tensor:
    return torch.randn(rows, 3, side, side)


MODELS: dict[str, Callable[[int], Made]] = {
    "ResNet": lambda rows: (resnet18(width=8), (images(rows),)),
    "MobileNet": lambda rows: (
        nn.Sequential(nn.Conv2d(3, 8, 3, 2), Squeezed(8, 16), Squeezed(8, 16)),
        (images(rows),),
    ),
    "ConvNeXt": lambda rows: (
        nn.Sequential(nn.Conv2d(3, 8, 4, 4), ConvNextBlock(8), ConvNextBlock(8)),
        (images(rows),),
    ),
    "Swin": lambda rows: (Swin(8, (2, 2), (2, 4), 4), (images(rows),)),
    "ViT": lambda rows: (VisionTransformer(32, 8, 16, 4, 2), (images(rows),)),
    "U-Net": lambda rows: (UNet(8), (images(rows), torch.randint(0, 1000, (rows,)))),
    "GPT": lambda rows: (GPT(50, 16, 4, 2, 16, 0.1), (words(rows),)),
    "VAE": lambda rows: (VAE(), (images(rows),)),
    "DenseNet": lambda rows: (nn.Sequential(nn.Conv2d(3, 8, 3, 2), Dense(8, 4, 3)), (images(rows),)),
    "ShuffleNet": lambda rows: (
        nn.Sequential(nn.Conv2d(3, 8, 3, 2), Shuffled(8), Shuffled(8)),
        (images(rows),),
    ),
    "Mixer": lambda rows: (nn.Sequential(Mixer(5, 6), Mixer(5, 6)), (torch.randn(rows, 5, 6),)),
    "TextCNN": lambda rows: (TextCNN(), (padded(rows),)),
    "Translator": lambda rows: (Translator(), (padded(rows), padded(rows, 9))),
    "GRUs with attention": lambda rows: (Attending(), (words(rows), words(rows, 5))),
    "Recommender": lambda rows: (Recommender(), (torch.randn(rows, 4), torch.randint(0, 20, (rows, 3)))),
    "PointNet": lambda rows: (PointNet(), (torch.randn(rows, 3, 20),)),
    "Graphs": lambda rows: (Graphs(), (torch.randn(rows, 5, 6), torch.rand(rows, 5, 5).round())),
    "State space": lambda rows: (StateSpace(), (torch.randn(rows, 5, 6),)),
    "Experts": lambda rows: (Experts(), (torch.randn(rows, 6),)),
    "WaveNet": lambda rows: (Dilated(), (torch.randn(rows, 6, 20),)),
    "Perceiver": lambda rows: (Latents(), (torch.randn(rows, 7, 8),)),
    "NeRF": lambda rows: (Fields(), (torch.randn(rows, 5, 3), torch.rand(rows, 5).sort(-1)[0])),
    "Siamese": lambda rows: (Siamese(), (torch.randn(rows, 6), torch.randn(rows, 6))),
    "Flow": lambda rows: (Flow(), (torch.randn(rows, 6),)),
    "Policy": lambda rows: (Policy(), (torch.randn(rows, 6),)),
    "Codes": lambda rows: (Quantized(), (torch.randn(rows, 6),)),
}
