"""A transformer with Adam whose state and activations a limit of memory is set by. Prints its losses.

With the word `long` it is a small one on two long sequences, whose activations are what is large.
"""

import dataclasses
import sys

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    width: int
    heads: int
    blocks: int
    batch: int
    length: int

    @property
    def parameters(self):
        return self.blocks * (12 * self.width * self.width + 13 * self.width)

    @property
    def activations(self):
        """Bytes, by block and token: both norms with their inputs, queries, keys and values, what attention
        gives, and the hidden layer with its activation.
        """
        return 4 * self.blocks * self.batch * self.length * (8 + 2 * 4) * self.width


LARGE, LONG = Shape(512, 8, 24, 4, 64), Shape(64, 2, 48, 2, 2048)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))
        self.up_proj, self.down_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        h = self.norm_1(x)
        q, k, v = (
            each(h).view(batch, length, -1, width // self.heads).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


def main():
    shape = LONG if "long" in sys.argv else LARGE
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(shape.width, shape.heads) for _ in range(shape.blocks)))
    assert sum(each.numel() for each in model.parameters()) == shape.parameters
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for _ in range(4):
        x = torch.randn(shape.batch, shape.length, shape.width)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9g}", flush=True)


if __name__ == "__main__":
    main()
