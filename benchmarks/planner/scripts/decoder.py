"""A decoder on drawn words, with experts where asked: `python decoder.py [--experts N] [--steps N]`."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY, BATCH = 256, 8, 4, 128, 1024, 16


class Mixture(nn.Module):
    """Two of the experts for each word."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList(feed_forward() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        words = x.reshape(-1, WIDTH)
        weights, choices = self.gate(words).softmax(-1).topk(2, -1)
        out = torch.zeros_like(words)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(choices == number)
            made = expert(words[rows]) * weights[rows, places, None]
            out.index_add_(0, rows, made)
        return out.view_as(x)


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


class Block(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = Mixture(experts) if experts else feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (each.view(rows, length, HEADS, width // HEADS).transpose(1, 2) for each in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_2(x))


class Decoder(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block(experts) for _ in range(LAYERS))
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = Decoder(asked.experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(asked.steps):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH))
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
