"""A transformer with Adam whose state and activations a limit of memory is set by. Prints its losses."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, BLOCKS, BATCH, LENGTH = 512, 8, 24, 4, 64
PARAMETERS = BLOCKS * (12 * WIDTH * WIDTH + 13 * WIDTH)
# By block and token: both norms with their inputs, queries, keys and values, what attention gives, and the
# hidden layer with its activation.
ACTIVATIONS = 4 * BLOCKS * BATCH * LENGTH * (8 + 2 * 4) * WIDTH


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        h = self.norm_1(x)
        q, k, v = (
            each(h).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for _ in range(4):
        x = torch.randn(BATCH, LENGTH, WIDTH)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9g}", flush=True)


if __name__ == "__main__":
    main()
