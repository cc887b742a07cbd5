"""Defaults in YAML, overrides in JSON and as `a.b=c`; the run's directory named by time, a copy of all that in it."""

import argparse
import copy
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from datetime import datetime
from pathlib import Path

import torch
import torch.nn as nn
import yaml
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

DEFAULTS = """
model: {hidden: 32, dropout: 0.1}
optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
data: {batch_size: 60, train: 900}
epochs: 2
seed: 4
"""


def merge(base, other):
    for key, value in other.items():
        base[key] = merge(base.get(key, {}), value) if isinstance(value, dict) else value
    return base


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*", help="such as optimizer.lr=0.05")
    parser.add_argument("--config", default=None)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    out = Path(args.out)
    (out / "conf").mkdir(parents=True, exist_ok=True)
    (out / "conf" / "default.yaml").write_text(DEFAULTS)
    (out / "conf" / "local.json").write_text(json.dumps({"model": {"hidden": 24}}))
    config = yaml.safe_load((out / "conf" / "default.yaml").read_text())
    config = merge(config, json.loads((out / "conf" / "local.json").read_text()))
    for override in args.overrides or ["optimizer.momentum=0.8"]:
        key, value = override.split("=")
        for name in reversed(key.split(".")):
            value = {name: yaml.safe_load(value) if isinstance(value, str) else value}
        merge(config, value)
    if args.epochs is not None:
        config["epochs"] = args.epochs
    if args.batch_size is not None:
        config["data"]["batch_size"] = args.batch_size
    if args.lr is not None:
        config["optimizer"]["lr"] = args.lr

    # One directory for each start, as hydra makes it.
    now = datetime.now()
    run_dir = out / "outputs" / now.strftime("%Y-%m-%d") / now.strftime("%H-%M-%S")
    if run_dir.exists():
        run_dir = run_dir.with_name(run_dir.name + "_1")
    (run_dir / ".conf").mkdir(parents=True)
    with open(run_dir / ".conf" / "config.yaml", "w") as f:
        yaml.safe_dump(config, f)
    shutil.copy(__file__, run_dir / ".conf")
    latest = out / "latest"
    if latest.is_symlink():
        latest.unlink()
    latest.symlink_to(os.path.relpath(run_dir, out))

    torch.manual_seed(config["seed"])
    X, y = load_digits(return_X_y=True)
    n = config["data"]["train"]
    X, y = torch.tensor(X / 16, dtype=torch.get_default_dtype()), torch.tensor(y)
    loader = DataLoader(TensorDataset(X[:n], y[:n]), config["data"]["batch_size"], shuffle=True)
    hidden = config["model"]["hidden"]
    model = nn.Sequential(
        nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(config["model"]["dropout"]), nn.Linear(hidden, 10)
    )
    options = copy.deepcopy(config["optimizer"])
    optimizer = getattr(torch.optim, options.pop("name"))(model.parameters(), **options)

    # Other people's ways to a name that nobody else has.
    stamped = out / f"run_{int(time.time())}"
    stamped.mkdir()
    unique = out / f"{uuid.uuid4().hex[:8]}_{time.strftime('%Y%m%d')}"
    os.makedirs(unique)
    by_process = out / f"log_{os.getpid()}.txt"
    scratch = tempfile.mkdtemp(prefix="cache_", dir=out)
    start = time.time()

    log = open(by_process, "w")
    for epoch in range(config["epochs"]):
        for step, (x, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{epoch} {step} {loss.item():.6f}", file=log, flush=True)
        torch.save(model.state_dict(), run_dir / f"epoch{epoch}.pt")
        print(f"epoch {epoch} loss {loss.item():.6f}")
    log.close()
    with open(os.path.join(scratch, "weights.json"), "w") as f:
        json.dump({k: v.sum().item() for k, v in model.state_dict().items()}, f)
    torch.save(optimizer.state_dict(), stamped / "optimizer.pt")
    (unique / "args.json").write_text(json.dumps({"argv": sys.argv[1:], "seed": config["seed"]}))

    print("lines", len(by_process.read_text().splitlines()), "in", len(os.listdir(run_dir)), "files")
    print("loads again", sorted(torch.load(latest / "epoch0.pt"))[:2], os.path.isdir(scratch))
    print("took less than an hour:", time.time() - start < 3600)


if __name__ == "__main__":
    main()
