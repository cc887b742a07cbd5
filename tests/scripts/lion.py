"""A hand-written optimizer (Lion, with a lookahead around it) and a learning-rate schedule of the user's."""

import argparse
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, TensorDataset


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        if lr <= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                beta1, beta2 = group["betas"]
                update = state["exp_avg"] * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["exp_avg"].lerp_(p.grad, 1 - beta2)
        return loss


class Lookahead:
    """Wraps an optimizer without being one: every k steps the slow weights follow the fast ones."""

    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.param_groups = optimizer.param_groups
        self.slow = [[p.clone().detach() for p in group["params"]] for group in self.param_groups]

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.param_groups, self.slow):
                for p, q in zip(group["params"], slow):
                    q.add_(p.data - q, alpha=self.alpha)
                    p.data.copy_(q)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(15)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.get_default_dtype()), torch.tensor(y)
    loader = DataLoader(TensorDataset(X[:1400], y[:1400]), args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 10)).to(device)
    decay = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    base = Lion(
        [{"params": decay, "weight_decay": 0.1}, {"params": others, "betas": (0.8, 0.98)}], lr=args.lr
    )
    optimizer = Lookahead(base)
    total = args.epochs * len(loader)

    step = 0
    for epoch in range(args.epochs):
        for x, target in loader:
            for group in optimizer.param_groups:
                group["lr"] = args.lr * 0.5 * (1 + math.cos(math.pi * step / total))
            loss = F.cross_entropy(model(x.to(device)), target.to(device), label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"{step}: loss {loss.item():.6f} lr {base.param_groups[0]['lr']:.6f}")
        with torch.no_grad():
            right = (model(X[1400:].to(device)).argmax(1).cpu() == y[1400:]).sum().item()
        print(f"epoch {epoch}: right {right}")

    # One step with a closure, and a check that the state can be saved and loaded.
    def closure():
        base.zero_grad()
        loss = F.cross_entropy(model(X[:200].to(device)), y[:200].to(device))
        loss.backward()
        return loss

    print(f"closure: {base.step(closure).item():.6f}")
    torch.save({"model": model.state_dict(), "lion": base.state_dict()}, os.path.join(args.out, "lion.pt"))
    base.load_state_dict(torch.load(os.path.join(args.out, "lion.pt"), weights_only=True)["lion"])
    print(f"momentum {sum(s['exp_avg'].abs().sum().item() for s in base.state.values()):.6f}")


if __name__ == "__main__":
    main()
