"""Three tasks from a batch that is a dict; losses weighted by learnt uncertainty, and a centre loss."""

import argparse
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class MultiTaskDigits(Dataset):
    def __init__(self, start, stop):
        digits = load_digits()
        dtype = torch.get_default_dtype()
        self.images = torch.tensor(digits.images[start:stop] / 16.0, dtype=dtype)
        self.targets = torch.tensor(digits.target[start:stop])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image, digit = self.images[i], self.targets[i]
        return {
            "image": image,
            "targets": {"digit": digit, "parity": (digit % 2).to(image.dtype), "ink": image.mean()},
            "index": i,
        }


@dataclass
class Outputs:
    predictions: dict
    embedding: torch.Tensor
    version: str = "v1"


class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.Tanh())
        self.heads = nn.ModuleDict(
            {"digit": nn.Linear(width, 10), "parity": nn.Linear(width, 1), "ink": nn.Linear(width, 1)}
        )

    def forward(self, batch):
        embedding = self.trunk(batch["image"])
        return Outputs({name: head(embedding).squeeze(-1) for name, head in self.heads.items()}, embedding)


class UncertaintyWeighting(nn.Module):
    """Kendall et al.: every task has a learnt log variance."""

    def __init__(self, tasks):
        super().__init__()
        self.log_vars = nn.ParameterDict({task: nn.Parameter(torch.zeros(())) for task in tasks})

    def forward(self, losses):
        return sum(loss * torch.exp(-self.log_vars[k]) + self.log_vars[k] for k, loss in losses.items())


class CenterLoss(nn.Module):
    """Squared distance to a learnt centre for each class."""

    def __init__(self, classes, width):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, width))

    def forward(self, x, labels):
        distances = torch.cdist(x, self.centers).pow(2)
        chosen = labels.unsqueeze(1) == torch.arange(len(self.centers), device=x.device)
        return (distances * chosen).clamp(1e-12, 1e12).sum() / len(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(9)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(MultiTaskDigits(0, 1450), args.batch_size, shuffle=True)
    test_loader = DataLoader(MultiTaskDigits(1450, 1797), args.batch_size)
    net = Net().to(device)
    weighting, center_loss = UncertaintyWeighting(net.heads).to(device), CenterLoss(10, 24).to(device)
    optimizer = torch.optim.SGD(
        [
            {"params": net.parameters(), "momentum": 0.9},
            {"params": weighting.parameters(), "lr": args.lr / 5},
        ],
        lr=args.lr,
    )
    center_optimizer = torch.optim.SGD(center_loss.parameters(), lr=0.5)

    def losses_of(outputs, targets):
        p = outputs.predictions
        return {
            "digit": F.cross_entropy(p["digit"], targets["digit"]),
            "parity": F.binary_cross_entropy_with_logits(p["parity"], targets["parity"]),
            "ink": F.huber_loss(p["ink"], targets["ink"]),
        }

    for epoch in range(args.epochs):
        net.train()
        seen = torch.zeros(1450, dtype=torch.bool)
        for batch in train_loader:
            seen[batch["index"]] = True
            batch = {
                k: {n: t.to(device) for n, t in v.items()} if isinstance(v, dict) else v.to(device)
                for k, v in batch.items()
            }
            outputs = net(batch)
            losses = losses_of(outputs, batch["targets"])
            center = center_loss(outputs.embedding, batch["targets"]["digit"])
            loss = weighting(losses) + 0.01 * center
            optimizer.zero_grad()
            center_optimizer.zero_grad()
            loss.backward()
            for p in center_loss.parameters():
                p.grad.data *= 1 / 0.01
            optimizer.step()
            center_optimizer.step()
        print(f"epoch {epoch}: " + " ".join(f"{k} {v.item():.6f}" for k, v in losses.items()), end=" ")
        print(f"center {center.item():.6f} seen {int(seen.sum())} version {outputs.version}")

        net.eval()
        totals, count = {"digit": 0.0, "parity": 0.0, "ink": 0.0}, 0
        with torch.no_grad():
            for batch in test_loader:
                outputs = net({k: v.to(device) for k, v in batch.items() if k == "image"})
                n = len(batch["index"])
                for name, value in losses_of(outputs, batch["targets"]).items():
                    totals[name] += value.item() * n
                count += n
        print("   test " + " ".join(f"{k} {v / count:.6f}" for k, v in totals.items()))
    state = {
        "net": net.state_dict(),
        "weighting": weighting.state_dict(),
        "centers": center_loss.state_dict(),
    }
    torch.save(state, os.path.join(args.out, "multitask.pt"))


if __name__ == "__main__":
    main()
