"""Mixed precision by `torch.autocast` in bfloat16: a small convolutional network with layer norm."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.fc1 = nn.Linear(256, 64)
        self.ln = nn.LayerNorm(64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.silu(self.norm(self.conv(x))), 2)
        x = self.ln(self.fc1(x.flatten(1)))
        return self.fc2(F.silu(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--no-amp", action="store_true")
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.get_default_dtype()).unsqueeze(1)
    labels = torch.tensor(digits.target)
    train_loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[1400:], labels[1400:]), 100)

    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    amp = dict(device_type=device, dtype=torch.bfloat16, enabled=not args.no_amp)
    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for i, (x, y) in enumerate(train_loader):
            x, y = x.to(device), y.to(device)
            with torch.autocast(**amp):
                output = model(x)
                loss = F.cross_entropy(output, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            running += loss.item()
            if i % 5 == 0:
                print(f"{epoch} {i}: loss {loss.item():.3f} gradient norm {norm:.2f}")

        model.eval()
        test_loss, correct = 0.0, 0
        with torch.no_grad(), torch.autocast(**amp):
            for x, y in test_loader:
                output = model(x.to(device))
                test_loss += F.cross_entropy(output.float(), y.to(device), reduction="sum").item()
                correct += (output.argmax(1) == y.to(device)).sum().item()
        print(
            f"epoch {epoch}: train {running / len(train_loader):.4f} "
            f"test {test_loss / len(test_loader.dataset):.4f} right {correct}"
        )
    torch.save(model.state_dict(), os.path.join(args.out, "amp_bf16.pt"))


if __name__ == "__main__":
    main()
