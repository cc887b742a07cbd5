"""Semi-supervised: labelled and unlabelled batches side by side, from zip, cycle and endless generators."""

import argparse
import itertools
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def endless(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(2)
    os.makedirs(args.out, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.get_default_dtype())
    y = torch.tensor(y)
    labelled = DataLoader(TensorDataset(X[:300], y[:300]), args.batch_size, shuffle=True)
    unlabelled = DataLoader(TensorDataset(X[300:1300]), 2 * args.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(TensorDataset(X[1300:], y[1300:]), 128)

    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    fixed_x, fixed_y = next(iter(valid))
    print("a batch to look at:", tuple(fixed_x.shape), fixed_y[:8].tolist())

    def step(x, labels, u, weight):
        logits, logits_u = model(x), model(u)
        supervised = F.cross_entropy(logits, labels)
        with torch.no_grad():
            pseudo = logits_u.softmax(-1)
            confidence, target = pseudo.max(-1)
            mask = confidence.ge(0.8).to(x.dtype)
        unsupervised = (F.cross_entropy(logits_u, target, reduction="none") * mask).mean()
        loss = supervised + weight * unsupervised
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return supervised.item(), unsupervised.item(), mask.mean().item()

    for epoch in range(args.epochs):
        for i, ((x, labels), (u,)) in enumerate(zip(labelled, unlabelled)):
            values = step(x, labels, u, weight=0.0)
            if i % 3 == 0:
                print(f"zip {epoch}.{i}: " + " ".join(f"{v:.6f}" for v in values))

    for i, ((x, labels), (u,)) in enumerate(zip(itertools.cycle(labelled), unlabelled)):
        values = step(x, labels, u, weight=0.5)
        if i % 5 == 0:
            print(f"cycle {i}: " + " ".join(f"{v:.6f}" for v in values))

    # By the number of steps, however long an epoch is.
    batches = endless(labelled)
    unlabelled_iter = iter(unlabelled)
    for iteration in range(18):
        x, labels = next(batches)
        try:
            (u,) = next(unlabelled_iter)
        except StopIteration:
            unlabelled_iter = iter(unlabelled)
            (u,) = next(unlabelled_iter)
        values = step(x, labels, u, weight=1.0)
        if iteration % 6 == 5:
            with torch.no_grad():
                looked = F.cross_entropy(model(fixed_x), fixed_y).item()
                accuracy = sum((model(a).argmax(1) == b).sum().item() for a, b in valid) / len(valid.dataset)
            print(f"endless {iteration}: {values[0]:.6f} fixed {looked:.6f} accuracy {accuracy:.4f}")

    torch.save({"model": model.state_dict(), "args": vars(args)}, os.path.join(args.out, "semi.pt"))


if __name__ == "__main__":
    main()
