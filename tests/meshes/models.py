"""Small language models in the three forms that people train: GPT-like, Llama-like, Mixtral-like."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MODELS", "VOCABULARY", "WIDTH"]

VOCABULARY = 24
WIDTH, _HEADS, _LENGTH, _LAYERS = 16, 4, 10, 2


class GptBlock(nn.Module):
    """LayerNorm, one matrix for queries, keys and values, a GELU between two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # Without a bias: a key's has no gradient but rounding, whose sign a one-bit compressor would send.
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            each.view(rows, length, _HEADS, width // _HEADS).transpose(1, 2)
            for each in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, width))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Learned positions; the head is the embedding."""

    def __init__(self, layers: int = _LAYERS) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(_LENGTH, WIDTH)
        self.h = nn.ModuleList(GptBlock() for _ in range(layers))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor, beside: torch.Tensor | None = None) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        x = x if beside is None else x + beside
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions of `x [rows, heads, length, width]`."""
    half = x.shape[-1] // 2
    rates = 1.0 / 100 ** (torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * torch.cat((rates, rates))
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * angles.cos() + turned * angles.sin()


class Attention(nn.Module):
    """Rotary positions, and two queries for each key."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads = _HEADS, _HEADS // 2
        self.q_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        each = width // _HEADS
        q, k, v = (
            layer(x).view(rows, length, -1, each).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotated(q), _rotated(k)
        k, v = (
            one[:, :, None].expand(-1, -1, 2, -1, -1).reshape(rows, _HEADS, length, each) for one in (k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, width))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    """Two of four experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(Gated() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, choices = self.gate(tokens).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(choices == number)
            made = expert(tokens[rows]) * weights[rows, places, None]
            out.index_add_(0, rows, made.to(out.dtype))
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, feed_forward: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), feed_forward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, layers: int = _LAYERS, feed_forward: Callable[[], nn.Module] = Gated) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(feed_forward) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, beside: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed_tokens(ids)
        x = x if beside is None else x + beside
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "gpt": Gpt,
    "llama": Llama,
    "mixtral": functools.partial(Llama, feed_forward=Mixture),
}
