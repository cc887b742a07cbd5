"""A small study: progress bar, log file, table of results, pictures, and a database of runs."""

import argparse
import logging
import os
import sqlite3
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm, trange


def make_logger(path):
    logger = logging.getLogger("experiment")
    logger.setLevel(logging.DEBUG)
    to_file = logging.FileHandler(path, mode="w")
    to_file.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
    to_screen = logging.StreamHandler(sys.stdout)
    to_screen.setLevel(logging.INFO)
    logger.addHandler(to_file)
    logger.addHandler(to_screen)
    return logger


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(0)
    os.makedirs(os.path.join(args.out, "figures"), exist_ok=True)
    logger = make_logger(os.path.join(args.out, "experiment.log"))
    logger.debug("arguments %s", vars(args))

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.get_default_dtype())
    y = torch.tensor(y)
    train_loader = DataLoader(TensorDataset(X[:1000], y[:1000]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(X[1000:], y[1000:]), 200)

    database = sqlite3.connect(os.path.join(args.out, "runs.sqlite"))
    database.execute(
        "CREATE TABLE IF NOT EXISTS epochs (epoch INTEGER PRIMARY KEY, loss REAL, accuracy REAL)"
    )

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    rows, losses = [], []
    for epoch in trange(args.epochs, desc="epochs", file=sys.stderr):
        model.train()
        bar = tqdm(train_loader, desc=f"epoch {epoch}", leave=False)
        for x, labels in bar:
            optimizer.zero_grad()
            loss = criterion(model(x), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            bar.set_postfix(loss=f"{loss.item():.4f}")
        model.eval()
        predictions = []
        with torch.no_grad():
            for x, labels in tqdm(test_loader, disable=True):
                predictions.append(pd.DataFrame({"label": labels.numpy(), "predicted": model(x).argmax(1)}))
        table = pd.concat(predictions, ignore_index=True)
        accuracy = float((table.label == table.predicted).mean())
        logger.info("epoch %d loss %.5f accuracy %.4f", epoch, sum(losses[-10:]) / 10, accuracy)
        rows.append({"epoch": epoch, "loss": losses[-1], "accuracy": accuracy})
        with database:
            database.execute("INSERT INTO epochs VALUES (?, ?, ?)", (epoch, losses[-1], accuracy))
        tqdm.write(f"wrote epoch {epoch}")

    results = pd.DataFrame(rows).set_index("epoch")
    results.to_csv(os.path.join(args.out, "results.csv"))
    results.to_json(os.path.join(args.out, "results.json"), orient="records", lines=True)
    print(results.describe().round(4))
    print("read back:", len(pd.read_csv(os.path.join(args.out, "results.csv"))), "rows")
    per_digit = table.assign(right=table.label == table.predicted).groupby("label").right.mean()
    per_digit.to_csv(os.path.join(args.out, "per_digit.csv"), float_format="%.4f")
    best = database.execute(
        "SELECT epoch, accuracy FROM epochs ORDER BY accuracy DESC, epoch LIMIT 1"
    ).fetchone()
    print(
        "best epoch %d with %.4f of %d" % (*best, *database.execute("SELECT count(*) FROM epochs").fetchone())
    )
    database.close()

    fig, (left, right) = plt.subplots(1, 2, figsize=(6, 2.5), dpi=60)
    left.plot(losses, label="loss")
    left.legend()
    per_digit.plot.bar(ax=right)
    fig.savefig(os.path.join(args.out, "figures", "curves.png"))
    plt.close(fig)
    plt.imsave(
        os.path.join(args.out, "figures", "weights.png"), model[0].weight.detach().numpy(), cmap="gray"
    )
    print(sorted(os.listdir(os.path.join(args.out, "figures"))))


if __name__ == "__main__":
    main()
