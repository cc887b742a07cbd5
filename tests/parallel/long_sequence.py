"""A transformer on two long sequences, whose activations a limit of memory is set by. Prints its losses."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, BLOCKS, BATCH, LENGTH = 64, 2, 48, 2, 2048
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
        h = self.norm_1(x)
        q, k, v = (
            each(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


class Summary(nn.Module):
    """Gives a few numbers for each sequence: what has one for each token would be whole on every rank."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.words = nn.Embedding(100, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.blocks(x).mean(1)


def main():
    torch.manual_seed(0)
    model = Summary()
    assert sum(each.numel() for each in model.blocks.parameters()) == PARAMETERS
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for _ in range(2):
        ids = torch.randint(0, 100, (BATCH, LENGTH))
        loss = (model(ids) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9g}", flush=True)


if __name__ == "__main__":
    main()
