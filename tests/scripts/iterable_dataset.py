"""Streams instead of tables: an IterableDataset read in this process, by workers that share it out, and shuffled."""

import argparse
import os
import random

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    """Reads a text file line by line; of several workers each takes every n-th line."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        with open(self.path) as f:
            for number, line in enumerate(f):
                if number % step == start:
                    *pixels, label = line.split()
                    x = torch.tensor([float(p) for p in pixels], dtype=torch.get_default_dtype())
                    yield x / 16, int(label)


class Shuffled(IterableDataset):
    """A buffer from which samples are drawn at random, as streaming libraries shuffle."""

    def __init__(self, source, size, seed):
        self.source = source
        self.size = size
        self.rng = random.Random(seed)

    def __iter__(self):
        buffer = []
        for sample in self.source:
            if len(buffer) < self.size:
                buffer.append(sample)
                continue
            index = self.rng.randrange(self.size)
            yield buffer[index]
            buffer[index] = sample
        self.rng.shuffle(buffer)
        yield from buffer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    train_path, test_path = (os.path.join(args.out, name) for name in ("train.txt", "test.txt"))
    for path, rows in ((train_path, range(900)), (test_path, range(900, 1200))):
        with open(path, "w") as f:
            for i in rows:
                print(*(int(p) for p in X[i]), y[i], file=f)

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    shuffled = Shuffled(Lines(train_path), 200, seed=3)
    loaders = [
        DataLoader(shuffled, batch_size=args.batch_size),
        DataLoader(Lines(train_path), batch_size=args.batch_size, num_workers=2),
    ]
    test_loader = DataLoader(Lines(test_path), batch_size=64)

    step = 0
    for epoch in range(args.epochs):
        loader = loaders[epoch % 2]
        model.train()
        for x, labels in loader:
            loss = criterion(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 6 == 0:
                print(f"step {step} rows {len(x)} loss {loss.item():.6f}")
            step += 1
        model.eval()
        correct = total = 0
        with torch.no_grad():
            for x, labels in test_loader:
                correct += (model(x).argmax(dim=1) == labels).sum().item()
                total += labels.size(0)
        print(f"epoch {epoch}: {correct} of {total} right")

    # One sample at a time, without batches.
    singles = DataLoader(Lines(test_path), batch_size=None)
    right = 0
    with torch.no_grad():
        for number, (x, label) in enumerate(singles):
            right += int(model(x.unsqueeze(0)).argmax(1).item() == label)
            if number == 20:
                break
    print("of the first 21:", right)
    torch.save(model.state_dict(), os.path.join(args.out, "stream.pt"))


if __name__ == "__main__":
    main()
