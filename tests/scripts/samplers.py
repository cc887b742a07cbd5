"""Samplers of all sorts: random_split, weights, subsets, batches of like samples, workers that persist."""

import argparse
import os

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.metrics import balanced_accuracy_score, classification_report
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)


class ByBrightness(Sampler):
    """Batches of samples of like brightness, the batches in random order."""

    def __init__(self, brightness, batch_size):
        self.order = np.argsort(brightness, kind="stable")
        self.batch_size = batch_size

    def __len__(self):
        return -(-len(self.order) // self.batch_size)

    def __iter__(self):
        for batch in torch.randperm(len(self)).tolist():
            yield self.order[batch * self.batch_size : (batch + 1) * self.batch_size].tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(1)
    os.makedirs(args.out, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    kept = (y != 3) | (np.arange(len(y)) % 5 == 0)  # a rare class
    X = torch.tensor(X[kept] / 16, dtype=torch.get_default_dtype())
    y = torch.tensor(y[kept])
    full = TensorDataset(X, y)
    train, valid, unused = random_split(full, [500, 300, len(full) - 800])
    labels = y[train.indices]
    counts = torch.bincount(labels, minlength=10)
    weights = (1.0 / counts.double())[labels]
    print("classes", counts.tolist(), "left out", len(unused))

    def workers(epoch):
        return dict(num_workers=2, persistent_workers=True) if epoch == 0 else {}

    brightness = X[train.indices].sum(dim=1).numpy()
    train_loaders = [
        DataLoader(train, args.batch_size, sampler=WeightedRandomSampler(weights, len(train)), **workers(0)),
        DataLoader(train, batch_sampler=ByBrightness(brightness, args.batch_size)),
        DataLoader(full, args.batch_size, sampler=SubsetRandomSampler(train.indices), drop_last=True),
        DataLoader(
            train,
            batch_sampler=BatchSampler(WeightedRandomSampler(weights, 300, replacement=False), 40, False),
        ),
    ]
    valid_loader = DataLoader(valid, batch_size=128)

    model = nn.Sequential(nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    scheduler = ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0)

    for epoch in range(args.epochs):
        # The workers of the first loader live on into its second use.
        for loader in (train_loaders[epoch % 4], train_loaders[0]):
            model.train()
            seen = torch.zeros(10, dtype=torch.long)
            for x, labels in loader:
                loss = nn.functional.cross_entropy(model(x), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen += torch.bincount(labels, minlength=10)
            print(f"epoch {epoch}: {len(loader)} batches, last loss {loss.item():.6f}, seen {seen.tolist()}")
        model.eval()
        predicted, true = [], []
        with torch.no_grad():
            for x, labels in valid_loader:
                predicted.append(model(x).argmax(dim=-1).cpu().numpy())
                true.append(labels.cpu().numpy())
        predicted, true = np.concatenate(predicted), np.concatenate(true)
        score = balanced_accuracy_score(true, predicted)
        scheduler.step(score)
        print(f"balanced accuracy {score:.4f}, learning rate {scheduler.get_last_lr()[0]:g}")

    with open(os.path.join(args.out, "report.txt"), "w") as f:
        f.write(classification_report(true, predicted, zero_division=0))
    torch.save(model.state_dict(), os.path.join(args.out, "samplers.pt"))


if __name__ == "__main__":
    main()
