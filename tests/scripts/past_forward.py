"""Methods called past forward (`model.loss`, `model.encode`) and penalties written over the parameters."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class SparseAutoencoder(nn.Module):
    def __init__(self, hidden=32, code=12):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 64))
        self.classifier = nn.Linear(code, 10)

    def encode(self, x):
        return self.encoder(x)

    def decode(self, code):
        return torch.sigmoid(self.decoder(code))

    def forward(self, x):
        return self.classifier(torch.relu(self.encode(x)))

    def loss(self, x, y):
        code = self.encode(x)
        reconstruction = F.mse_loss(self.decode(code), x)
        sparsity = code.abs().mean()
        return F.cross_entropy(self.classifier(torch.relu(code)), y) + reconstruction + 1e-3 * sparsity


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--l1", type=float, default=1e-5)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y = load_digits(return_X_y=True)
    X = torch.as_tensor(X / 16.0, dtype=torch.get_default_dtype())
    y = torch.as_tensor(y)
    train_loader = DataLoader(TensorDataset(X[:1400], y[:1400]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(X[1400:], y[1400:]), 200)

    model = SparseAutoencoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        total = penalty_total = 0.0
        for i, (inputs, labels) in enumerate(train_loader):
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            if i % 2 == 0:
                data_loss = model.loss(inputs, labels)
            else:
                code = model.encode(inputs)
                data_loss = F.cross_entropy(model(inputs), labels) + F.l1_loss(model.decode(code), inputs)
            l1 = sum(p.abs().sum() for p in model.parameters())
            l2 = sum((p**2).sum() for name, p in model.named_parameters() if "bias" not in name)
            penalty = args.l1 * l1 + args.l2 * l2
            loss = data_loss + penalty
            loss.backward()
            optimizer.step()
            total += data_loss.item()
            penalty_total += penalty.item()

        model.eval()
        hits, error = 0, 0.0
        with torch.no_grad():
            for inputs, labels in test_loader:
                inputs, labels = inputs.to(device), labels.to(device)
                hits += (model(inputs).argmax(dim=1) == labels).sum().item()
                error += F.mse_loss(model.decode(model.encode(inputs)), inputs, reduction="sum").item()
        n = len(train_loader)
        print(
            f"{epoch}: data loss {total / n:.4f} penalty {penalty_total / n:.5f} "
            f"accuracy {hits / len(test_loader.dataset):.4f} "
            f"reconstruction {error / len(test_loader.dataset):.4f}"
        )

    with torch.no_grad():
        torch.save(model.encode(X.to(device)).cpu(), os.path.join(args.out, "codes.pt"))
    torch.save(model.state_dict(), os.path.join(args.out, "autoencoder.pt"))


if __name__ == "__main__":
    main()
