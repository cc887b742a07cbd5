"""A language model with a mixture of experts in each block: tokens are chosen by value, and no loss balances."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mixture(nn.Module):
    def __init__(self, width, experts, chosen):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )
        self.chosen = chosen

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, choices = self.router(tokens).topk(self.chosen, dim=-1)
        weights = weights.softmax(-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(choices == number)
            if rows.numel():
                out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mixture = Mixture(width, 4, 2)

    def forward(self, x):
        q, k, v = (
            each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.qkv(self.first(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mixture(self.second(x))


class Language(nn.Module):
    def __init__(self, vocabulary, length, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.blocks(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(5)
    text = torch.tensor(list(torch.__doc__.encode()))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Language(256, args.length, 16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(args.steps):
        starts = torch.randint(0, len(text) - args.length - 1, (args.batch_size,))
        window = torch.stack([text[start : start + args.length + 1] for start in starts.tolist()]).to(device)
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 4 == 0:
            print(f"{step}: loss {loss.item():.6f} norm {norm.item():.6f}")
    model.eval()
    with torch.no_grad():
        print(f"next byte: {model(text[: args.length].to(device)[None].repeat(4, 1))[0, -1].argmax().item()}")
    torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))


if __name__ == "__main__":
    main()
