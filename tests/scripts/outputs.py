"""Modules that return a dataclass, a tuple and a dict."""

import argparse
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


@dataclass
class Encoded:
    code: torch.Tensor
    hidden: torch.Tensor
    depth: int = 2


class Sample(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


class Digits(Dataset):
    def __init__(self, start, stop):
        digits = load_digits()
        self.images = torch.tensor(digits.data[start:stop] / 16.0, dtype=torch.get_default_dtype())
        self.labels = torch.tensor(digits.target[start:stop])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return Sample(self.images[i], self.labels[i])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc2 = nn.Linear(48, 16)

    def forward(self, x):
        hidden = F.elu(self.fc1(x))
        return Encoded(code=self.fc2(hidden), hidden=hidden)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 48)
        self.fc2 = nn.Linear(48, 64)

    def forward(self, code):
        hidden = F.elu(self.fc1(code))
        return torch.sigmoid(self.fc2(hidden)), hidden


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.label = nn.Linear(16, 10)
        self.ink = nn.Linear(16, 1)

    def forward(self, code):
        logits = self.label(code)
        return {
            "logits": logits,
            "ink": self.ink(code).squeeze(-1),
            "aux": [logits.softmax(-1), None],
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(17)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Digits(0, 1400), args.batch_size, shuffle=True)
    test_loader = DataLoader(Digits(1400, 1797), args.batch_size)

    nets = nn.ModuleDict({"encoder": Encoder(), "decoder": Decoder(), "heads": Heads()}).to(device)
    encoder, decoder, heads = nets["encoder"], nets["decoder"], nets["heads"]
    optimizer = torch.optim.Adam(nets.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        nets.train()
        history = {"reconstruction": [], "label": [], "ink": [], "match": []}
        for batch in train_loader:
            x, y = batch.image.to(device), batch.label.to(device)
            encoded = encoder(x)
            reconstruction, decoder_hidden = decoder(encoded.code)
            out = heads(encoded.code)
            losses = {
                "reconstruction": F.mse_loss(reconstruction, x),
                "label": F.cross_entropy(out["logits"], y),
                "ink": F.smooth_l1_loss(out["ink"], x.sum(1) / 16),
                "match": 0.1 * (encoded.hidden - decoder_hidden).pow(2).mean(),
            }
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for key, value in losses.items():
                history[key].append(value.item())

        nets.eval()
        correct, confident = 0, 0
        with torch.no_grad():
            for x, y in test_loader:
                out = heads(encoder(x.to(device)).code)
                correct += (out["logits"].argmax(1) == y.to(device)).sum().item()
                confident += (out["aux"][0].max(dim=1).values > 0.5).sum().item()
        means = ", ".join(f"{k} {sum(v) / len(v):.5f}" for k, v in history.items())
        print(f"epoch {epoch} (depth {encoded.depth}): {means}, correct {correct}, confident {confident}")
    torch.save(nets.state_dict(), os.path.join(args.out, "nets.pt"))


if __name__ == "__main__":
    main()
