"""`torch.compile`: a compiled model, a module compiled in place, a compiled loss and a whole compiled step."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.ln = nn.LayerNorm(32)
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(self.drop(F.silu(self.ln(self.fc1(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(18)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.get_default_dtype()), torch.tensor(y)
    loader = DataLoader(TensorDataset(X[:1400], y[:1400]), args.batch_size, shuffle=True, drop_last=True)
    test_x, test_y = X[1400:].to(device), y[1400:].to(device)

    def evaluate(model):
        model.eval()
        with torch.no_grad():
            logits = model(test_x)
        return F.cross_entropy(logits, test_y).item(), (logits.argmax(1) == test_y).sum().item()

    # A compiled model.
    net = Net().to(device)
    model = torch.compile(net, backend=args.backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        for i, (x, target) in enumerate(loader):
            loss = F.cross_entropy(model(x.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 5 == 0:
                print(f"model {i}: {loss.item():.6f}")
        print("model", *evaluate(model))
    print(sorted(model.state_dict())[0], type(model).__name__)

    # A module compiled in place, and a compiled function for the loss.
    other = Net(dropout=0.0).to(device)
    other.compile(backend=args.backend)

    @torch.compile(backend=args.backend)
    def smoothed(logits, target):
        log_probs = F.log_softmax(logits, dim=-1)
        picked = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
        return -(0.9 * picked + 0.1 * log_probs.mean(-1)).mean()

    optimizer = torch.optim.SGD(other.parameters(), lr=args.lr)
    for i, (x, target) in enumerate(loader):
        loss = smoothed(other(x.to(device)), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 5 == 0:
            print(f"loss {i}: {loss.item():.6f}")
    print("other", *evaluate(other))

    # The whole step: forward, backward and update.
    third = Net(dropout=0.0).to(device)
    optimizer = torch.optim.SGD(third.parameters(), lr=args.lr, momentum=0.9)

    @torch.compile(backend=args.backend)
    def train_step(x, target):
        loss = F.cross_entropy(third(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for i, (x, target) in enumerate(loader):
        loss = train_step(x.to(device), target.to(device))
        if i % 5 == 0:
            print(f"step {i}: {loss.item():.6f}")
    print("third", *evaluate(third))
    states = {"net": net.state_dict(), "other": other.state_dict(), "third": third.state_dict()}
    torch.save(states, os.path.join(args.out, "compiled.pt"))


if __name__ == "__main__":
    main()
