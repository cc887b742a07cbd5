"""Small models that use parameters in many ways, trained on one device and on ranks that cut them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
D = torch.float64


class Heads(nn.Module):
    """Grouped queries with rotary positions, as in Llama-like models."""

    def __init__(self, dropout: float = 0.0, *, by_torch: bool = True) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.dropout, self.by_torch = 4, 2, dropout, by_torch
        self.q_proj = nn.Linear(16, 16, bias=False)
        self.k_proj = nn.Linear(16, 8, bias=False)
        self.v_proj = nn.Linear(16, 8)
        self.o_proj = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, -1, 4).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, -1, 4).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, 4).transpose(1, 2)
        angle = torch.arange(length, dtype=x.dtype)[:, None] * torch.tensor(
            [1.0, 0.1, 1.0, 0.1], dtype=x.dtype
        )
        q, k = (each * angle.cos() + turned(each) * angle.sin() for each in (q, k))
        k, v = (each[:, :, None].expand(-1, -1, 2, -1, -1).reshape(batch, 4, length, 4) for each in (k, v))
        if self.by_torch:
            p = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(4)
            scores = scores.masked_fill(torch.ones(length, length).tril() == 0, -math.inf)
            y = F.dropout(scores.softmax(-1), self.dropout, self.training) @ v
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, 16))


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((-x[..., 2:], x[..., :2]), dim=-1)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.down_proj = nn.Linear(24, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Language(nn.Module):
    """A language model with its loss inside, tied or not."""

    def __init__(self, *, tied: bool = True, dropout: float = 0.0, by_torch: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=3)
        self.norm, self.heads, self.gated = nn.LayerNorm(16), Heads(dropout, by_torch=by_torch), Gated()
        self.lm_head = nn.Linear(16, 20, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.heads(self.norm(x))
        x = x + self.gated(self.norm(x))
        targets = ids.roll(-1, 1).masked_fill(ids == 0, -100)
        return F.cross_entropy(self.lm_head(x).view(-1, 20), targets.view(-1))


class Odd(nn.Module):
    """Uses matrices for what no rule is made for."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc1(x)
        hidden = (
            torch.cumsum(hidden, -1) / 10
            + torch.einsum("...o,io->...i", hidden, self.fc2.weight) @ self.fc2.weight
        )
        hidden.relu_()
        return self.fc2(hidden) + (self.fc1.weight**2).mean()


class Both(nn.Module):
    """A decoder of torch's with attention to a memory, and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 4, 24, 0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, -1] = True
        return self.layer(x, x.flip(1), tgt_mask=mask, tgt_is_causal=True, memory_key_padding_mask=padding)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "language": Language,
    "untied": lambda: Language(tied=False),
    "dropout in attention": lambda: Language(dropout=0.3),
    "dropout by hand": lambda: Language(dropout=0.3, by_torch=False),
    "odd": Odd,
    "decoder": Both,
    "weights of attention": lambda: nn.MultiheadAttention(16, 4, 0.1, batch_first=True),
}


def batch(name: str, draw: torch.Generator) -> Any:
    if name in ("odd", "decoder", "weights of attention"):
        return torch.randn(6, 5, 16, generator=draw, dtype=D)
    return torch.randint(0, 20, (6, 5), generator=draw)


def called(name: str, model: nn.Module, x: Any) -> torch.Tensor:
    if name == "weights of attention":
        out, weights = model(x, x, x)
        return out.pow(2).mean() + (weights * weights.shape[-1]).pow(2).mean()
    result = model(x)
    return result if result.dim() == 0 else result.pow(2).mean()


def train(name: str) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = MODELS[name]().to(D)
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    told: list[torch.Tensor] = []
    for _ in range(5):
        loss = called(name, model, batch(name, draw))
        optimizer.zero_grad()
        loss.backward()
        told.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).clone())
        optimizer.step()
        told.append(torch.tensor(loss.item()))
    model.eval()
    with torch.no_grad():
        told.append(called(name, model, batch(name, draw)).clone())
    told += [value.clone() for value in model.state_dict().values()]
    told += [each["momentum_buffer"].clone() for each in optimizer.state_dict()["state"].values()]
    return told


def on_ranks(rank: Rank, plan: str, work: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    with rank.session(plan) as session:
        return work(*args), len(session.state.blocks.blocks)


def compare(ranks: Ranks, plan: str, work: Callable[..., Any], *args: Any, tolerance: float = 1e-11) -> None:
    expected = work(*args)
    for found, blocks in ranks(on_ranks, plan, work, *args):
        assert blocks  # something was cut, or nothing would be tried
        assert len(found) == len(expected)
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
