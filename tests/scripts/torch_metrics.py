"""torchmetrics: updated by batch, computed by epoch, reset; and the mean of the loss."""

import argparse
import os

import torch
import torch.nn as nn
import torchmetrics
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=70)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.get_default_dtype())
    y = torch.tensor(y)
    train_loader = DataLoader(TensorDataset(X[:1000], y[:1000]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(X[1000:], y[1000:]), 150)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    mean_loss = torchmetrics.MeanMetric()
    running = MulticlassAccuracy(num_classes=10, average="micro")
    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": MulticlassAccuracy(num_classes=10),
            "f1": MulticlassF1Score(num_classes=10),
            "auroc": MulticlassAUROC(num_classes=10, thresholds=None),
        }
    )
    confusion = MulticlassConfusionMatrix(num_classes=10)
    for epoch in range(args.epochs):
        model.train()
        for x, labels in train_loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean_loss.update(loss.detach(), weight=len(x))
            batch_accuracy = running(logits, labels)
        print(
            f"epoch {epoch} loss {mean_loss.compute():.6f} accuracy {running.compute():.4f}, last {batch_accuracy:.4f}"
        )
        mean_loss.reset()
        running.reset()

        model.eval()
        with torch.no_grad():
            for x, labels in test_loader:
                logits = model(x)
                metrics.update(logits.softmax(dim=-1), labels)
                confusion.update(logits, labels)
        results = metrics.compute()
        print("test " + " ".join(f"{name} {value.item():.5f}" for name, value in results.items()))
        print(confusion.compute().diagonal().tolist(), int(confusion.compute().sum()))
        metrics.reset()
        confusion.reset()
    torch.save(model.state_dict(), os.path.join(args.out, "metrics.pt"))


if __name__ == "__main__":
    main()
