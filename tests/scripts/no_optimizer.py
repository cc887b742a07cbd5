"""Softmax regression with bare tensors: no module, no optimizer."""

import argparse
import os

import torch
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--out", default=".")
args = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
x_all = torch.tensor(digits.data / 16, dtype=torch.get_default_dtype())
y_all = torch.tensor(digits.target)
x_train, y_train, x_valid, y_valid = (
    x_all[:1400],
    y_all[:1400],
    x_all[1400:],
    y_all[1400:],
)

weights = torch.randn(64, 10) / 8
weights.requires_grad_()
bias = torch.zeros(10, requires_grad=True)


def log_softmax(x):
    return x - x.exp().sum(-1).log().unsqueeze(-1)


def model(xb):
    return log_softmax(xb @ weights + bias)


def nll(input, target):
    return -input[range(target.shape[0]), target].mean()


def accuracy(out, yb):
    preds = torch.argmax(out, dim=1)
    return (preds == yb).to(x_all.dtype).mean()


for epoch in range(args.epochs):
    order = torch.randperm(len(x_train))
    for start in range(0, len(order), args.batch_size):
        index = order[start : start + args.batch_size]
        xb, yb = x_train[index], y_train[index]
        loss = nll(model(xb), yb)
        loss.backward()
        with torch.no_grad():
            weights -= weights.grad * args.lr
            bias -= bias.grad * args.lr
            weights.grad.zero_()
            bias.grad.zero_()
    with torch.no_grad():
        out = model(x_valid)
        print(
            f"epoch {epoch}: loss {nll(out, y_valid).item():.5f} accuracy {accuracy(out, y_valid).item():.4f}"
        )

torch.save((weights, bias), os.path.join(args.out, "weights.pt"))
