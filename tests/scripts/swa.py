"""Stochastic weight averaging: AveragedModel, SWALR, update_bn, and both models tested."""

import argparse
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset


def accuracy(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, labels in loader:
            correct += model(x).argmax(1).eq(labels).sum().item()
    model.train()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=90)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--swa-start", type=int, default=2)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(1)
    os.makedirs(args.out, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.get_default_dtype()).view(-1, 1, 8, 8)
    y = torch.tensor(y)
    train_loader = DataLoader(TensorDataset(X[:630], y[:630]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(X[630:1230], y[630:1230]), 200)

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = CosineAnnealingLR(optimizer, T_max=args.swa_start)
    swa_model = AveragedModel(model)
    ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)

    for epoch in range(args.epochs):
        for x, labels in train_loader:
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema_model.update_parameters(model)
        if epoch >= args.swa_start:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
        lr = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch} loss {loss.item():.6f} lr {lr:.5f} accuracy {accuracy(model, test_loader):.4f}")

    update_bn(train_loader, swa_model)
    update_bn(train_loader, ema_model)
    print(f"averaged {swa_model.n_averaged.item()} models: {accuracy(swa_model, test_loader):.4f}")
    print(f"moving average: {accuracy(ema_model, test_loader):.4f}")
    torch.save(swa_model.module.state_dict(), os.path.join(args.out, "swa.pt"))
    torch.save(ema_model.state_dict(), os.path.join(args.out, "ema.pt"))


if __name__ == "__main__":
    main()
