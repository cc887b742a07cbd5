"""Masked-character model whose output layer shares the embedding's weight."""

import argparse
import inspect
import os
import textwrap

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class TiedModel(nn.Module):
    def __init__(self, vocab_size, dim=32, context=9):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.mix = nn.Linear(context * dim, 64)
        self.out = nn.Linear(64, dim)
        self.head = nn.Linear(dim, vocab_size)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, tokens):
        x = self.embedding(tokens).reshape(tokens.shape[0], -1)
        return self.head(self.out(torch.tanh(self.mix(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(77)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = inspect.getsource(textwrap)
    alphabet = sorted(set(text)) + ["<mask>"]
    index = {c: i for i, c in enumerate(alphabet)}
    ids = torch.tensor([index[c] for c in text])
    windows = ids.unfold(0, 9, 1)[: args.samples].clone()
    targets = windows[:, 4].clone()
    windows[:, 4] = index["<mask>"]
    cut = int(len(windows) * 0.9)
    loader = DataLoader(TensorDataset(windows[:cut], targets[:cut]), args.batch_size, shuffle=True)

    model = TiedModel(len(alphabet)).to(device)
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters in {len(list(model.parameters()))} tensors"
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            model.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.5f}")
        model.eval()
        with torch.no_grad():
            logits = model(windows[cut:].to(device))
            perplexity = F.cross_entropy(logits, targets[cut:].to(device)).exp().item()
            top3 = (logits.topk(3, dim=1).indices == targets[cut:, None].to(device)).any(1).sum().item()
        print(f"epoch {epoch}: perplexity {perplexity:.4f}, top-3 {top3}/{len(windows) - cut}")
    print("still tied:", model.head.weight is model.embedding.weight)
    torch.save(model.state_dict(), os.path.join(args.out, "tied.pt"))


if __name__ == "__main__":
    main()
