"""SimCLR on digits: two noisy views of each image, NT-Xent over all images of the batch."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, width=64, projection=16):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection))

    def forward(self, x):
        h = self.backbone(x)
        return h, self.projector(h)


def augment(x):
    keep = torch.rand_like(x) > 0.2
    return x * keep + 0.1 * torch.randn_like(x)


def nt_xent(z1, z2, temperature):
    n = z1.size(0)
    z = F.normalize(torch.cat([z1, z2], dim=0), dim=1)
    sim = z @ z.t() / temperature
    sim.fill_diagonal_(float("-inf"))
    targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    loss = F.cross_entropy(sim, targets)
    top1 = (sim.argmax(dim=1) == targets).sum()
    return loss, top1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=100)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--temperature", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default=".")
    args = p.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.get_default_dtype())
    y = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)

    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-6)
    for epoch in range(args.epochs):
        model.train()
        total_loss, total_top1, total = 0.0, 0, 0
        for images, _ in loader:
            images = images.to(device)
            _, z1 = model(augment(images))
            _, z2 = model(augment(images))
            loss, top1 = nt_xent(z1, z2, args.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.item() * len(images)
            total_top1 += top1.item()
            total += 2 * len(images)
        print(f"epoch {epoch}  nt-xent {total_loss / len(loader.dataset):.5f}  top1 {total_top1}/{total}")

    # k-nearest neighbours on the frozen features, in one batch
    model.eval()
    with torch.no_grad():
        features = F.normalize(model(x.to(device))[0], dim=1)
    bank, queries = features[:1400], features[1400:]
    neighbours = (queries @ bank.t()).topk(5, dim=1).indices.cpu()
    votes = y[:1400][neighbours]
    correct = (votes.mode(dim=1).values == y[1400:]).sum().item()
    print(f"5-nn accuracy {correct}/{len(queries)}")
    torch.save(model.backbone.state_dict(), f"{args.out}/backbone.pth")


if __name__ == "__main__":
    main()
