"""A decoder on drawn words: `python decoder.py [--width N] [--layers N] [--experts N] ...`."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 32


class Mixture(nn.Module):
    """Two of the experts for each word."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(feed_forward(width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        words = x.reshape(-1, x.shape[-1])
        weights, choices = self.gate(words).softmax(-1).topk(2, -1)
        out = torch.zeros_like(words)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(choices == number)
            made = expert(words[rows]) * weights[rows, places, None]
            out.index_add_(0, rows, made)
        return out.view_as(x)


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Mixture(width, experts) if experts else feed_forward(width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (each.view(rows, length, width // HEAD, HEAD).transpose(1, 2) for each in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_2(x))


class Decoder(nn.Module):
    def __init__(self, asked: argparse.Namespace) -> None:
        super().__init__()
        self.words = nn.Embedding(asked.vocabulary, asked.width)
        self.places = nn.Embedding(asked.length, asked.width)
        self.h = nn.ModuleList(Block(asked.width, asked.experts) for _ in range(asked.layers))
        self.norm, self.lm_head = (
            nn.LayerNorm(asked.width),
            nn.Linear(asked.width, asked.vocabulary, bias=False),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    sizes = {"width": 256, "layers": 4, "length": 128, "vocabulary": 1024, "batch": 8, "experts": 0}
    for name, usual in {**sizes, "steps": 12}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = Decoder(asked)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(asked.steps):
        ids = torch.randint(asked.vocabulary, (asked.batch, asked.length))
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
