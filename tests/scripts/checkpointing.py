"""Activation checkpointing, re-entrant and not, with dropout inside, and layers dropped at random."""

import argparse
import inspect
import os
import random
import shlex

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, C // self.heads).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(att.transpose(1, 2).reshape(B, T, C)))
        return x + self.drop(self.mlp(self.ln2(x)))


class Model(nn.Module):
    def __init__(self, vocab, width, layers, block_size, dropout):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(torch.zeros(block_size, width))
        self.blocks = nn.ModuleList([Block(width, 2, dropout) for _ in range(layers)])
        self.tail = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(width, vocab),
        )
        self.layer_drop, self.mode = 0.0, "none"

    def forward(self, idx):
        x = self.tokens(idx) + self.positions[: idx.shape[1]]
        for block in self.blocks:
            if self.training and self.layer_drop and random.random() < self.layer_drop:
                continue
            if self.mode == "reentrant" and self.training:
                x = checkpoint(block, x, use_reentrant=True)
            elif self.mode == "plain" and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        if self.mode != "none" and self.training:
            return checkpoint_sequential(self.tail, 2, x, use_reentrant=False)
        return self.tail(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--epochs", type=int, default=3, help="plain checkpoints, with layers dropped, re-entrant"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=13)
    parser.add_argument("--block-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--layer-drop", type=float, default=0.2)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(5)
    random.seed(5)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = inspect.getsource(shlex)
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text], device=device)

    model = Model(len(chars), 24, 3, args.block_size, 0.1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        model.mode = ("plain", "plain", "reentrant")[epoch % 3]
        model.layer_drop = args.layer_drop if epoch % 3 == 1 else 0.0
        model.train()
        for step in range(args.steps):
            start = torch.randint(len(data) - args.block_size - 1, (args.batch_size,))
            x = torch.stack([data[i : i + args.block_size] for i in start])
            y = torch.stack([data[i + 1 : i + 1 + args.block_size] for i in start])
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{model.mode} {step}: {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            x, y = data[:96].view(4, 24), data[1:97].view(4, 24)
            print(f"epoch {epoch}: {F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item():.6f}")
    torch.save(model.state_dict(), os.path.join(args.out, "checkpointing.pt"))


if __name__ == "__main__":
    main()
