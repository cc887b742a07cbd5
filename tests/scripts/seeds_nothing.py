"""A classifier whose author never thought of seeds."""

import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--out", default=".")
args = parser.parse_args()

X, y = load_digits(return_X_y=True)
order = np.random.permutation(len(X))
X, y = X[order] / 16.0, y[order]
rng = np.random.default_rng()
X = X + rng.normal(scale=0.01, size=X.shape)
held_out = random.sample(range(len(X)), 300)
kept = sorted(set(range(len(X))) - set(held_out))

X = torch.tensor(X, dtype=torch.get_default_dtype())
y = torch.tensor(y)
train_loader = DataLoader(TensorDataset(X[kept], y[kept]), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(TensorDataset(X[held_out], y[held_out]), batch_size=args.batch_size)

model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Dropout(0.2), nn.Linear(50, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

for t in range(args.epochs):
    print(f"Epoch {t + 1}\n-------------------------------")
    size = len(train_loader.dataset)
    model.train()
    for batch, (xb, yb) in enumerate(train_loader):
        loss = loss_fn(model(xb), yb)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if batch % 10 == 0:
            loss, current = loss.item(), (batch + 1) * len(xb)
            print(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")

    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for xb, yb in test_loader:
            pred = model(xb)
            test_loss += loss_fn(pred, yb).item()
            correct += (pred.argmax(1) == yb).type(torch.get_default_dtype()).sum().item()
    test_loss /= len(test_loader)
    correct /= len(test_loader.dataset)
    print(f"Test Error: \n Accuracy: {(100 * correct):>0.1f}%, Avg loss: {test_loss:>8f} \n")

torch.save(model.state_dict(), os.path.join(args.out, "model.pth"))
print("Saved PyTorch Model State to model.pth")
