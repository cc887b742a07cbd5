"""`torch.func`: per-sample gradients (clipped, as in DP-SGD), an ensemble by `vmap`, Hessian products."""

import argparse
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.func import functional_call, grad, grad_and_value, jvp, stack_module_state, vmap
from torch.utils.data import DataLoader, TensorDataset


def make_net():
    return nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.get_default_dtype()), torch.tensor(y)
    loader = DataLoader(TensorDataset(X[:1400], y[:1400]), args.batch_size, shuffle=True)
    test_x, test_y = X[1400:].to(device), y[1400:].to(device)

    model = make_net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    def sample_loss(params, x, y):
        logits = functional_call(model, params, (x.unsqueeze(0),))
        return F.cross_entropy(logits, y.unsqueeze(0))

    per_sample = vmap(grad_and_value(sample_loss), in_dims=(None, 0, 0))
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            params = {name: p.detach() for name, p in model.named_parameters()}
            grads, losses = per_sample(params, x, y)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            factors = (args.max_norm / (norms + 1e-6)).clamp(max=1.0)
            for name, p in model.named_parameters():
                clipped = torch.einsum("i,i...->...", factors, grads[name])
                p.grad = (clipped + args.noise * torch.randn_like(p)) / len(x)
            optimizer.step()
            if step % 5 == 0:
                clipped = (norms > args.max_norm).sum().item()
                print(
                    f"{epoch} {step}: loss {losses.mean().item():.6f} largest {norms.max().item():.6f} {clipped}"
                )

    # How curved the loss is along its gradient: a Hessian-vector product.
    params = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(params):
        return F.cross_entropy(functional_call(model, params, (test_x,)), test_y)

    direction = grad(loss_of)(params)
    _, product = jvp(grad(loss_of), (params,), (direction,))
    curvature = sum((product[name] * direction[name]).sum() for name in params)
    print(f"curvature {curvature.item():.8f} loss {loss_of(params).item():.6f}")

    # An ensemble of nets, trained at once.
    nets = [make_net().to(device) for _ in range(3)]
    stacked, buffers = stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")

    def one(params, buffers, x):
        return functional_call(base, (params, buffers), (x,))

    optimizer = torch.optim.SGD(stacked.values(), lr=args.lr)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        logits = vmap(one, in_dims=(0, 0, None))(stacked, buffers, x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.repeat(len(nets)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        votes = vmap(one, in_dims=(0, 0, None))(stacked, buffers, test_x).softmax(-1)
        agree = (votes.mean(0).argmax(-1) == test_y).sum().item()
    print(
        f"ensemble: loss {loss.item():.6f} right {agree} of {len(test_y)} spread {votes.std(0).mean().item():.6f}"
    )
    torch.save({"model": model.state_dict(), "ensemble": stacked}, os.path.join(args.out, "per_sample.pt"))


if __name__ == "__main__":
    main()
