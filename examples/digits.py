"""Learn to read small pictures: an ordinary training script for one device.

    python examples/digits.py --epochs 12
    ronde run --ranks 2 examples/digits.py --epochs 12

The pictures are Fashion-MNIST (28 x 28, ten kinds of clothing) where Debian's package `dataset-fashion-mnist`
is installed, else the handwritten digits (8 x 8) that come with scikit-learn.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def read_idx(path, header):
    """The bytes of a gzipped IDX file behind its header."""
    with gzip.open(path, "rb") as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)


def fashion_mnist(part):
    images = read_idx(FASHION_MNIST / f"{part}-images-idx3-ubyte.gz", header=16).reshape(-1, 1, 28, 28)
    labels = read_idx(FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz", header=8)
    return TensorDataset(
        torch.from_numpy(images / np.float32(255)), torch.from_numpy(labels.astype(np.int64))
    )


def digits():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[:, None]
    parts = train_test_split(images, bunch.target, test_size=360, random_state=0, stratify=bunch.target)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def load_data(name):
    if name == "auto":
        name = "fashion-mnist" if FASHION_MNIST.is_dir() else "digits"
    train, test = digits() if name == "digits" else (fashion_mnist("train"), fashion_mnist("t10k"))
    print(f"{name}: {len(train)} pictures to learn from, {len(test)} to be tested on")
    return train, test


class Block(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )


class Net(nn.Module):
    """Two convolutions with batch norm, dropout, a linear head: 8 x 8 and 28 x 28 pictures alike."""

    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(Block(1, 16), Block(16, 32), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 4, classes))

    def forward(self, x):
        return self.head(self.features(x))


def train_epoch(model, loader, optimizer, scheduler):
    model.train()
    total, seen = 0.0, 0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(labels)
        seen += len(labels)
    return total / seen


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--data", choices=["auto", "digits", "fashion-mnist"], default="auto")
    parser.add_argument("--output", type=Path, default=Path("demo-out"))
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = load_data(args.data)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=512)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.epochs * len(train_loader)
    )

    args.output.mkdir(parents=True, exist_ok=True)
    best_file = args.output / "best.pt"
    best = 0.0
    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(model, train_loader, optimizer, scheduler)
        score = accuracy(model, test_loader)
        if score > best:
            best = score
            torch.save(model.state_dict(), best_file)
        print(f"epoch {epoch:2d}   loss {loss:.4f}   accuracy {score:.2%}   best {best:.2%}")

    model.load_state_dict(torch.load(best_file, weights_only=True))
    print(f"{best_file} reaches {accuracy(model, test_loader):.2%}")


if __name__ == "__main__":
    main()
