"""Weights & Biases without a network: config, metrics by step, a table, a summary, a file saved with the run."""

import argparse
import os

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import torch
import torch.nn as nn
import wandb
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


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
    run = wandb.init(project="digits", config=vars(args), tags=["small"])
    wandb.config.hidden = 32
    print("hidden", run.config.hidden, "lr", run.config["lr"], "disabled", run.disabled)

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.get_default_dtype())
    y = torch.tensor(y)
    train_loader = DataLoader(TensorDataset(X[:1200], y[:1200]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(X[1200:], y[1200:]), 256)
    model = nn.Sequential(nn.Linear(64, run.config.hidden), nn.ReLU(), nn.Linear(run.config.hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    wandb.watch(model, log="gradients", log_freq=10)
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        for x, labels in train_loader:
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            wandb.log({"train/loss": loss.item(), "epoch": epoch})
        model.eval()
        with torch.no_grad():
            logits, labels = zip(*((model(x), labels) for x, labels in test_loader))
        logits, labels = torch.cat(logits), torch.cat(labels)
        accuracy = (logits.argmax(1) == labels).to(logits.dtype).mean().item()
        table = wandb.Table(columns=["label", "predicted"])
        for label, predicted in zip(labels[:5].tolist(), logits[:5].argmax(1).tolist()):
            table.add_data(label, predicted)
        wandb.log(
            {
                "test/accuracy": accuracy,
                "samples": table,
                "logits": wandb.Histogram(logits.flatten().tolist()),
            }
        )
        if accuracy > best:
            best = accuracy
            wandb.run.summary["best_accuracy"] = accuracy
            torch.save(model.state_dict(), os.path.join(wandb.run.dir, "model.pt"))
        print(f"epoch {epoch} loss {loss.item():.6f} accuracy {accuracy:.4f}")
    wandb.finish()
    torch.save(model.state_dict(), "model.pt")
    runs = [name for name in os.listdir("wandb") if name.startswith("offline-run")]
    print("run directories:", len(runs))


if __name__ == "__main__":
    main()
