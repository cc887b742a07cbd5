"""A mixture of experts: tokens chosen by value inside forward, an auxiliary loss among the outputs."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class MoE(nn.Module):
    def __init__(self, width, experts, k):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(experts)
            ]
        )
        self.k = k
        self.register_buffer("load", torch.zeros(experts))

    def forward(self, x):
        probabilities = self.gate(x).softmax(-1)
        weights, chosen = probabilities.topk(self.k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == i)
            if len(rows) == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, places].unsqueeze(-1))
        counts = F.one_hot(chosen, len(self.experts)).sum(1).to(x.dtype)
        if self.training:
            self.load.mul_(0.9).add_(counts.sum(0), alpha=0.1)
        balance = len(self.experts) * (counts.mean(0) * probabilities.mean(0)).sum()
        return out, balance


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.moe = MoE(width, 4, 2)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        y, balance = self.moe(x)
        return self.head(x + y), balance, self.moe.k


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(27)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.get_default_dtype()), torch.tensor(y)
    loader = DataLoader(TensorDataset(X[:1000], y[:1000]), args.batch_size, shuffle=True)
    net = Net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        net.train()
        for i, (x, target) in enumerate(loader):
            logits, balance, _ = net(x.to(device))
            loss = F.cross_entropy(logits, target.to(device)) + 0.01 * balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 5 == 0:
                print(f"{epoch} {i}: loss {loss.item():.6f} balance {balance.item():.6f}")
        net.eval()
        with torch.no_grad():
            logits, balance, _ = net(X[1000:].to(device))
        right = (logits.argmax(1).cpu() == y[1000:]).sum().item()
        print(f"epoch {epoch}: right {right} balance {balance:.6f} load {net.moe.load.tolist()}")
    torch.save(net.state_dict(), os.path.join(args.out, "mixture.pt"))


if __name__ == "__main__":
    main()
