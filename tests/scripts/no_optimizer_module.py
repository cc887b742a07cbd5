"""A module whose parameters the script moves by hand."""

import argparse
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(4)
    digits = load_digits()
    inputs = torch.tensor(digits.data / 16.0, dtype=torch.get_default_dtype())
    targets = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=args.batch_size, shuffle=True)

    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        net.train()
        running_loss = 0.0
        for i, (x, y) in enumerate(loader):
            net.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= args.lr * p.grad
            running_loss += loss.item()
            if (i + 1) % 10 == 0:
                print("[%d, %2d] loss: %.5f" % (epoch + 1, i + 1, running_loss / 10))
                running_loss = 0.0
        net.eval()
        with torch.no_grad():
            correct = (net(inputs).argmax(1) == targets).sum().item()
        print(f"epoch {epoch + 1}: {correct}/{len(targets)}")
    torch.save(net.state_dict(), os.path.join(args.out, "net.pt"))


if __name__ == "__main__":
    main()
