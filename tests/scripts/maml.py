"""MAML on two-class digit tasks: an inner loop of gradient steps that the outer gradient goes through."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.func import functional_call


class Tasks:
    """Two digits at a time, `shots` pictures of each to adapt to and as many to be judged by."""

    def __init__(self, shots, device):
        digits = load_digits()
        self.images = torch.tensor(digits.data / 16.0, dtype=torch.get_default_dtype(), device=device)
        self.places = [torch.tensor((digits.target == d).nonzero()[0]) for d in range(10)]
        self.shots = shots

    def sample(self):
        support, query, labels = [], [], []
        for label, digit in enumerate(torch.randperm(10)[:2].tolist()):
            chosen = self.places[digit][torch.randperm(len(self.places[digit]))[: 2 * self.shots]]
            support.append(self.images[chosen[: self.shots]])
            query.append(self.images[chosen[self.shots :]])
            labels.append(torch.full((self.shots,), label, device=self.images.device))
        labels = torch.cat(labels)
        return torch.cat(support), labels, torch.cat(query), labels


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def adapt(model, params, x, y, rates, steps, first_order):
    for _ in range(steps):
        loss = F.cross_entropy(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=not first_order)
        params = {name: p - rates[name] * g for (name, p), g in zip(params.items(), grads)}
    return params


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=3, help="tasks in one meta step")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--inner-steps", type=int, default=2)
    parser.add_argument("--inner-lr", type=float, default=0.4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(21)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tasks, model = Tasks(args.shots, device), Net().to(device)
    # The rates of the inner loop are learnt as well (Meta-SGD).
    rates = nn.ParameterDict(
        {
            name.replace(".", "_"): nn.Parameter(torch.tensor(args.inner_lr))
            for name, _ in model.named_parameters()
        }
    ).to(device)
    by_name = {name: rates[name.replace(".", "_")] for name, _ in model.named_parameters()}
    optimizer = torch.optim.SGD([*model.parameters(), *rates.parameters()], lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        optimizer.zero_grad()
        losses, hits = [], 0
        for _ in range(args.batch_size):
            x, y, query_x, query_y = tasks.sample()
            params = dict(model.named_parameters())
            fast = adapt(model, params, x, y, by_name, args.inner_steps, first_order=epoch % 4 == 3)
            logits = functional_call(model, fast, (query_x,))
            losses.append(F.cross_entropy(logits, query_y))
            hits += (logits.argmax(1) == query_y).sum().item()
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        print(f"{epoch}: loss {loss.item():.6f} right {hits} of {2 * args.shots * args.batch_size}")
    torch.save({"model": model.state_dict(), "rates": rates.state_dict()}, os.path.join(args.out, "maml.pt"))


if __name__ == "__main__":
    main()
