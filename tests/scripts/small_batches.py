"""Batches of one, two and three samples, and a last batch of one."""

import argparse
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        return self.fc(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--samples", type=int, default=31)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(6)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    digits = load_digits()
    x = torch.tensor(digits.images / 16.0, dtype=torch.get_default_dtype()).unsqueeze(1)
    y = torch.tensor(digits.target)
    dataset = TensorDataset(x[: args.samples], y[: args.samples])
    # one sample at a time, a few at a time, then all but one sample in one batch
    loaders = [
        DataLoader(TensorDataset(x[:5], y[:5]), batch_size=1, shuffle=True),
        DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=False),
        DataLoader(dataset, batch_size=3, shuffle=True, drop_last=False),
        DataLoader(dataset, batch_size=args.samples - 1, shuffle=True, drop_last=False),
    ]
    valid = DataLoader(TensorDataset(x[100:110], y[100:110]), batch_size=3)

    model = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        for loader in loaders:
            model.train()
            total, sizes = 0.0, []
            for inputs, labels in loader:
                inputs, labels = inputs.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = criterion(model(inputs), labels)
                loss.backward()
                optimizer.step()
                total += loss.item() * len(labels)
                sizes.append(len(labels))
            print(f"epoch {epoch} batches of {sizes[0]} (last {sizes[-1]}): {total / sum(sizes):.6f}")
        model.eval()
        with torch.no_grad():
            hits = sum((model(a.to(device)).argmax(1) == b.to(device)).sum().item() for a, b in valid)
        print(f"epoch {epoch}: {hits}/{len(valid.dataset)}")
    torch.save(model.state_dict(), os.path.join(args.out, "small.pt"))


if __name__ == "__main__":
    main()
