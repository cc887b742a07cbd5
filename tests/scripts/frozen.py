"""Transfer learning: pretrain on 0-4, freeze, new head for 5-9, later unfreeze with add_param_group."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.aux = nn.Linear(64, 3)  # from an older experiment, not used any more
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(self.backbone(x).flatten(1))


def train_epoch(model, loader, optimizer, device, freeze_bn=False):
    model.train()
    if freeze_bn:
        model.backbone.eval()
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * x.size(0)
        correct += torch.sum(out.argmax(1) == y).item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4, help="the backbone is unfrozen half-way")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(31)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    digits = load_digits()
    x = torch.tensor(digits.images / 16.0, dtype=torch.get_default_dtype()).unsqueeze(1)
    y = torch.tensor(digits.target)
    source = TensorDataset(x[y < 5], y[y < 5])
    target = TensorDataset(x[y >= 5], y[y >= 5] - 5)
    source_loader = DataLoader(source, args.batch_size, shuffle=True)
    target_loader = DataLoader(target, args.batch_size, shuffle=True)

    model = Net(5).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loss, acc = train_epoch(model, source_loader, optimizer, device)
    print(f"pretrain: loss {loss:.5f} acc {acc:.4f}")

    for param in model.backbone.parameters():
        param.requires_grad = False
    model.fc = nn.Linear(64, 5).to(device)
    optimizer = torch.optim.SGD(
        filter(lambda p: p.requires_grad, model.parameters()), lr=args.lr, momentum=0.9
    )
    unfrozen = False
    for epoch in range(args.epochs):
        if not unfrozen and epoch >= args.epochs // 2:
            for param in model.backbone.parameters():
                param.requires_grad_(True)
            optimizer.add_param_group({"params": model.backbone.parameters(), "lr": args.lr / 10})
            unfrozen = True
        loss, acc = train_epoch(model, target_loader, optimizer, device, freeze_bn=not unfrozen)
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"epoch {epoch}: loss {loss:.5f} acc {acc:.4f} trainable {trainable}")
    print("aux has no gradient:", model.aux.weight.grad is None)
    torch.save(model.state_dict(), os.path.join(args.out, "transfer.pt"))


if __name__ == "__main__":
    main()
