"""Hooks on parameters and on values in the midst of a graph: clipped, masked, reversed and saved gradients."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class GradCam(nn.Module):
    """Keeps the gradient of its feature map, as visual explanations need it."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ELU(), nn.MaxPool2d(2))
        self.classifier = nn.Linear(128, 10)
        self.gradients = None

    def activations_hook(self, gradient):
        self.gradients = gradient

    def forward(self, x):
        x = self.features(x)
        if x.requires_grad:
            x.register_hook(self.activations_hook)
        return self.classifier(x.flatten(1))


class DomainNet(nn.Module):
    """A domain-adversarial network; the caller reverses the gradient of its features by a hook."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 24), nn.Tanh())
        self.label = nn.Linear(24, 10)
        self.domain = nn.Linear(24, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=2e-3)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(14)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.get_default_dtype()).unsqueeze(1)
    labels = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), args.batch_size, shuffle=True)

    cam = GradCam().to(device)
    optimizer = torch.optim.SGD(cam.parameters(), lr=args.lr, momentum=0.9)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(cam(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            heat = cam.gradients.mean(dim=(2, 3)).abs().max().item()
            print(f"cam {step}: loss {loss.item():.6f} {tuple(cam.gradients.shape)} {heat:.8f}")

    # Parameters: clip every entry of each gradient; keep a mask of pruned weights.
    net = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).to(device)
    mask = (torch.rand_like(net[0].weight) < 0.5).to(net[0].weight.dtype)
    with torch.no_grad():
        net[0].weight.mul_(mask)
    handles = [p.register_hook(lambda g: g.clamp(-args.clip, args.clip)) for p in net.parameters()]
    net[0].weight.register_hook(lambda g: g * mask)
    seen = []
    net[2].bias.register_hook(lambda g: seen.append(g.norm().item()))
    optimizer = torch.optim.SGD(net.parameters(), lr=10 * args.lr)
    for step, (x, y) in enumerate(loader):
        if step == 10:
            for handle in handles:
                handle.remove()
            optimizer.param_groups[0]["lr"] = args.lr
        loss = F.cross_entropy(net(x.to(device).flatten(1)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        largest = max(p.grad.abs().max().item() for p in net.parameters())
        optimizer.step()
        if step % 5 == 0:
            zeros = (net[0].weight == 0).sum().item()
            print(
                f"net {step}: loss {loss.item():.6f} largest {largest:.6f} zeros {zeros} seen {seen[-1]:.6f}"
            )

    # Values of the script: the domain's gradient comes back reversed, another is only looked at.
    model = DomainNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device).flatten(1), y.to(device)
        domain = (y > 4).long()
        features = model.body(x)
        reverse = features.clone()
        reverse.register_hook(lambda g: -0.5 * g)
        norms = []
        features.register_hook(lambda g: norms.append(g.norm(dim=1).mean().item()))
        features.retain_grad()
        loss = F.cross_entropy(model.label(features), y) + F.cross_entropy(model.domain(reverse), domain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            kept = features.grad.abs().sum().item()
            print(f"domain {step}: loss {loss.item():.6f} norm {norms[0]:.8f} kept {kept:.8f}")
    states = {"cam": cam.state_dict(), "net": net.state_dict(), "model": model.state_dict()}
    torch.save(states, os.path.join(args.out, "hooks.pt"))


if __name__ == "__main__":
    main()
