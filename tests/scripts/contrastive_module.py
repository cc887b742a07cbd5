"""CLIP in small: the upper and the lower half of a digit are matched within the batch."""

import argparse
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class Halves(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return {
            "upper": image[:4].flatten(),
            "lower": image[4:].flatten(),
            "index": index,
        }


class Tower(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim_in, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, dim_out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class ClipLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, a, b):
        logits_a = self.logit_scale.exp() * a @ b.t()
        logits_b = logits_a.t()
        labels = torch.arange(len(a), device=a.device)
        return (F.cross_entropy(logits_a, labels) + F.cross_entropy(logits_b, labels)) / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.tensor(load_digits().images / 16.0, dtype=torch.get_default_dtype())
    train_loader = DataLoader(Halves(images[:1500]), args.batch_size, shuffle=True)
    test_loader = DataLoader(Halves(images[1500:]), args.batch_size)

    upper, lower = Tower(32, 24).to(device), Tower(32, 24).to(device)
    criterion = ClipLoss().to(device)
    params = [*upper.parameters(), *lower.parameters(), *criterion.parameters()]
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.01)

    for epoch in range(args.epochs):
        upper.train()
        lower.train()
        losses = []
        for batch in train_loader:
            a = upper(batch["upper"].to(device))
            b = lower(batch["lower"].to(device))
            loss = criterion(a, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                criterion.logit_scale.clamp_(0, np.log(100))
            losses.append(loss.item())

        upper.eval()
        lower.eval()
        with torch.no_grad():
            a = torch.cat([upper(batch["upper"].to(device)) for batch in test_loader])
            b = torch.cat([lower(batch["lower"].to(device)) for batch in test_loader])
            ranks = (a @ b.t()).argsort(dim=1, descending=True)
            hits = (ranks[:, :5] == torch.arange(len(a), device=device)[:, None]).any(dim=1).sum()
        scale = criterion.logit_scale.exp().item()
        print(f"epoch {epoch}: loss {np.mean(losses):.4f} scale {scale:.4f} recall@5 {hits.item()}/{len(a)}")

    state = {
        "upper": upper.state_dict(),
        "lower": lower.state_dict(),
        "criterion": criterion.state_dict(),
    }
    torch.save(state, os.path.join(args.out, "towers.pt"))


if __name__ == "__main__":
    main()
