"""One optimizer for each parameter, stepped in backward by a post-accumulate hook: no gradient outlives it."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(4)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.get_default_dtype()), torch.tensor(y)
    loader = DataLoader(TensorDataset(X[:1400], y[:1400]), args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 10)).to(device)

    optimizers = {
        p: torch.optim.SGD([p], lr=args.lr, momentum=0.9, foreach=False) for p in model.parameters()
    }
    norms = {p: 0.0 for p in model.parameters()}

    def optimizer_hook(parameter):
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        norms[parameter] += parameter.grad.norm().item()
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(optimizer_hook) for p in model.parameters()]
    for epoch in range(args.epochs):
        model.train()
        for step, (x, target) in enumerate(loader):
            loss = F.cross_entropy(model(x.to(device)), target.to(device))
            loss.backward()
            if step % 5 == 0:
                left = sum(p.grad is not None for p in model.parameters())
                print(f"{epoch} {step}: loss {loss.item():.6f}, {left} gradients left")
        model.eval()
        with torch.no_grad():
            right = (model(X[1400:].to(device)).argmax(1).cpu() == y[1400:]).sum().item()
        print(f"epoch {epoch}: right {right}, norms " + " ".join(f"{n:.6f}" for n in norms.values()))

    # Without the hooks gradients are there again.
    for handle in handles:
        handle.remove()
    F.cross_entropy(model(X[:100].to(device)), y[:100].to(device)).backward()
    print("left:", *[f"{p.grad.norm().item():.6f}" for p in model.parameters()])
    torch.save(model.state_dict(), os.path.join(args.out, "in_backward.pt"))


if __name__ == "__main__":
    main()
