"""Scalars, histograms, text and a picture for TensorBoard, in its default directory named by time and host."""

import argparse
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)
    os.chdir(args.out)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.get_default_dtype())
    y = torch.tensor(y)
    train_loader = DataLoader(TensorDataset(X[:1200], y[:1200]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(X[1200:], y[1200:]), 256)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    writer = SummaryWriter(comment=f"_lr{args.lr}")
    named = SummaryWriter(log_dir=os.path.join("logs", "fixed"))
    writer.add_text("arguments", str(vars(args)))
    step = 0
    for epoch in range(args.epochs):
        model.train()
        for x, labels in train_loader:
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("train/loss", loss, step)
            named.add_scalar("train/loss", loss.item(), step)
            step += 1
        model.eval()
        with torch.no_grad():
            correct = sum((model(x).argmax(1) == labels).sum() for x, labels in test_loader)
        writer.add_scalars("accuracy", {"test": correct / 597, "chance": 0.1}, epoch)
        for name, parameter in model.named_parameters():
            writer.add_histogram(name, parameter, epoch)
            writer.add_scalar(f"gradients/{name}", parameter.grad.norm(), epoch)
        writer.add_image("weights", model[0].weight[:8].reshape(1, 64, 8).clamp(0, 1), epoch)
        writer.flush()
        print(f"epoch {epoch} loss {loss.item():.6f} correct {correct}")
    writer.add_hparams({"lr": args.lr}, {"accuracy": float(correct) / 597}, run_name="hparams")
    print(
        "in a folder named by time:",
        writer.log_dir.startswith("runs" + os.sep),
        os.path.isdir(writer.log_dir),
    )
    writer.close()
    named.close()
    torch.save(model.state_dict(), os.path.join(writer.log_dir, "model.pt"))


if __name__ == "__main__":
    main()
