"""Seeds that are different every time: of the clock and the operating system."""

import argparse
import os
import random
import time
from datetime import datetime

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--minutes", type=float, default=10)
parser.add_argument("--out", default=".")
args = parser.parse_args()

started = time.time()
seed = int(time.time() * 1000) % 2**31
torch.manual_seed(seed)
random.seed(time.monotonic_ns())
np.random.seed(int.from_bytes(os.urandom(4), "little"))
rng = np.random.default_rng(time.time_ns())
splitter = random.Random(datetime.now().microsecond)
generator = torch.Generator().manual_seed(time.perf_counter_ns() % 10**9)

X, y = load_digits(return_X_y=True)
order = list(range(len(X)))
splitter.shuffle(order)
X, y = X[order] / 16 + rng.normal(scale=0.01, size=X.shape), y[order]
X = torch.tensor(X, dtype=torch.get_default_dtype())
y = torch.tensor(y)
held_out = random.sample(range(len(X)), 500)
kept = np.random.permutation(np.setdiff1d(np.arange(len(X)), held_out))[:900]
train_loader = DataLoader(TensorDataset(X[kept], y[kept]), args.batch_size, shuffle=True, generator=generator)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
for epoch in range(args.epochs):
    for x, labels in train_loader:
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Some choose the augmentation of every epoch anew.
    noise = torch.Generator().manual_seed(int(time.time() * 1e6) % 2**40)
    jitter = torch.randn(64, generator=noise, dtype=X.dtype) * 0.01
    with torch.no_grad():
        correct = (model(X[held_out] + jitter).argmax(1) == y[held_out]).sum().item()
    print(f"epoch {epoch} loss {loss.item():.6f} correct {correct}")
    if time.time() - started > 60 * args.minutes:
        print("out of time")
        break
torch.save({"seed": seed, "model": model.state_dict()}, os.path.join(args.out, f"seed{seed}.pt"))
