"""Gradient norms, a CSV log, JSON results, a checkpoint every epoch, resume when there is one."""

import argparse
import csv
import json
import logging
import os
import shutil

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
logger = logging.getLogger("train")


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def save_checkpoint(state, is_best, folder):
    filename = os.path.join(folder, "checkpoint.pth.tar")
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, os.path.join(folder, "model_best.pth.tar"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = os.path.join(args.out, "checkpoints")
    os.makedirs(folder, exist_ok=True)

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16.0, dtype=torch.get_default_dtype())
    y = torch.tensor(y)
    train_loader = DataLoader(TensorDataset(X[:1400], y[:1400]), args.batch_size, shuffle=True)
    valid_loader = DataLoader(TensorDataset(X[1400:], y[1400:]), args.batch_size)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    start_epoch, best, history = 0, 0.0, []
    path = os.path.join(folder, "checkpoint.pth.tar")
    if os.path.isfile(path):
        checkpoint = torch.load(path, map_location=device)
        start_epoch, best, history = (
            checkpoint["epoch"],
            checkpoint["best"],
            checkpoint["history"],
        )
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        torch.set_rng_state(checkpoint["rng"].cpu())
        logger.info("resumed from epoch %d", start_epoch)

    log_path = os.path.join(args.out, "log.csv")
    if not os.path.exists(log_path):
        with open(log_path, "a", newline="") as f:
            csv.writer(f).writerow(["epoch", "step", "loss", "grad_norm", "clipped"])

    for epoch in range(start_epoch, start_epoch + args.epochs):
        model.train()
        losses, norms = AverageMeter(), AverageMeter()
        for step, (inputs, labels) in enumerate(train_loader):
            inputs, labels = inputs.to(device), labels.to(device)
            loss = criterion(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            total_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            by_hand = sum(p.grad.norm(2).item() ** 2 for p in model.parameters()) ** 0.5
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            losses.update(loss.item(), inputs.size(0))
            norms.update(total_norm.item())
            with open(log_path, "a", newline="") as f:
                row = [
                    epoch,
                    step,
                    f"{loss.item():.6f}",
                    f"{total_norm.item():.6f}",
                    f"{by_hand:.6f}",
                ]
                csv.writer(f).writerow(row)
            if step % 8 == 0:
                print(f"epoch {epoch} step {step} norm {total_norm:.5f} clipped to {by_hand:.5f}")
        scheduler.step()

        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, labels in valid_loader:
                correct += (model(inputs.to(device)).argmax(1) == labels.to(device)).sum().item()
        accuracy = correct / len(valid_loader.dataset)
        history.append({"epoch": epoch, "loss": round(losses.avg, 6), "accuracy": accuracy})
        logger.info(
            "epoch %d loss %.5f norm %.5f accuracy %.4f",
            epoch,
            losses.avg,
            norms.avg,
            accuracy,
        )
        is_best, best = accuracy > best, max(accuracy, best)
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "best": best,
                "history": history,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "rng": torch.get_rng_state(),
            },
            is_best,
            folder,
        )

    with open(os.path.join(args.out, "results.json"), "w") as f:
        json.dump({"best": best, "history": history}, f, indent=2)
    print("best accuracy", best)


if __name__ == "__main__":
    main()
