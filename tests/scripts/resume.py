"""Interrupted by a signal in the middle, resumed from safetensors and a checkpoint; tidied up at exit."""

import argparse
import atexit
import json
import os
import signal
import sys

import torch
import torch.nn as nn
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=80)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
weights_path = os.path.join(args.out, "model.safetensors")
state_path = os.path.join(args.out, "state.pt")
lock_path = os.path.join(args.out, "running.lock")

stop_requested = False


def on_signal(number, frame):
    global stop_requested
    stop_requested = True
    print("caught", signal.Signals(number).name, flush=True)


signal.signal(signal.SIGUSR1, on_signal)


@atexit.register
def tidy_up():
    if os.path.exists(lock_path):
        os.remove(lock_path)
    with open(os.path.join(args.out, "exit.json"), "w") as f:
        json.dump({"stopped": stop_requested}, f)
    print("tidied up")


with open(lock_path, "w") as f:
    f.write("locked")

X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16, dtype=torch.get_default_dtype())
y = torch.tensor(y)
dataset = TensorDataset(X[:800], y[:800])


def build():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)


def train(interrupt_after):
    """Trains until done or interrupted; where a checkpoint lies, from there."""
    model, optimizer, scheduler = build()
    start = 0
    if os.path.exists(state_path):
        model.load_state_dict(load_file(weights_path))
        state = torch.load(state_path)
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
        start = state["epoch"]
        print("resuming at epoch", start)
    for epoch in range(start, args.epochs):
        total = 0.0
        for x, labels in DataLoader(dataset, args.batch_size, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        sys.stdout.write(f"epoch {epoch}: ")
        print(f"{total / 10:.6f}", end=" ", flush=True)
        print("lr", f"{scheduler.get_last_lr()[0]:.4f}", sep="=", end="\n", flush=True)
        save_file(model.state_dict(), weights_path, metadata={"epoch": str(epoch)})
        state = {
            "epoch": epoch + 1,
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }
        torch.save(state, state_path + ".new")
        os.replace(state_path + ".new", state_path)
        if epoch == interrupt_after:
            os.kill(os.getpid(), signal.SIGUSR1)
        if stop_requested:
            break
    return model


if os.path.exists(state_path):
    os.remove(state_path)
train(interrupt_after=1)
print("interrupted:", stop_requested)
stop_requested = False
model = train(interrupt_after=-1)
with torch.no_grad():
    right = (model.eval()(X[800:1600]).argmax(1) == y[800:1600]).sum().item()
print("right:", right, "locked:", os.path.exists(lock_path))
