"""LBFGS with a closure, on the full training set and on batches."""

import argparse
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=700)
parser.add_argument("--lr", type=float, default=0.8)
parser.add_argument("--weight-decay", type=float, default=1e-3)
parser.add_argument("--out", default=".")
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16.0, dtype=torch.get_default_dtype(), device=device)
y = torch.tensor(y, device=device)
train_x, train_y, test_x, test_y = X[:1400], y[:1400], X[1400:], y[1400:]

model = nn.Linear(64, 10).to(device)
criterion = nn.CrossEntropyLoss()

# The whole set at once, with a line search.
optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=4, line_search_fn="strong_wolfe")
for i in range(args.epochs):
    evaluations = []

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(train_x), train_y)
        loss = loss + args.weight_decay * sum(p.pow(2).sum() for p in model.parameters())
        evaluations.append(loss.item())
        loss.backward()
        return loss

    first = optimizer.step(closure)
    print(f"step {i}: loss {first.item():.8f} -> {evaluations[-1]:.8f}, {len(evaluations)} evaluations")

# Batches, with a fixed step and a second model.
net = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).to(device)
optimizer = torch.optim.LBFGS(net.parameters(), lr=args.lr / 8, max_iter=3, history_size=5)
loader = DataLoader(TensorDataset(train_x, train_y), args.batch_size, shuffle=True)
for epoch in range(args.epochs // 2):
    for x, target in loader:

        def closure():
            if torch.is_grad_enabled():
                optimizer.zero_grad()
            loss = criterion(net(x), target)
            if loss.requires_grad:
                loss.backward()
            return loss

        loss = optimizer.step(closure)
    with torch.no_grad():
        losses = criterion(net(test_x), test_y), criterion(model(test_x), test_y)
        hits = (net(test_x).argmax(1) == test_y).sum()
    print(f"epoch {epoch}: train {loss:.8f} test {losses[0]:.8f} linear {losses[1]:.8f} right {hits}")
torch.save({"linear": model.state_dict(), "net": net.state_dict()}, os.path.join(args.out, "lbfgs.pt"))
