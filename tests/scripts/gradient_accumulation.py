"""Gradient accumulation by `(i + 1) % k == 0 or last`."""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--accumulation-steps", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=10)
parser.add_argument("--out", default=".")
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16.0, dtype=torch.get_default_dtype())
y = torch.tensor(y)
train_loader = DataLoader(TensorDataset(X[:1450], y[:1450]), batch_size=args.batch_size, shuffle=True)
valid_loader = DataLoader(TensorDataset(X[1450:], y[1450:]), batch_size=args.batch_size)

model = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 10)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, dampening=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 3], gamma=0.5)
k = args.accumulation_steps

updates = 0
for epoch in range(args.epochs):
    model.train()
    optimizer.zero_grad()
    running = torch.zeros((), device=device)
    for i, (inputs, labels) in enumerate(train_loader):
        outputs = model(inputs.to(device))
        loss = criterion(outputs, labels.to(device)) / k
        loss.backward()
        running += loss.detach() * k
        if (i + 1) % k == 0 or i + 1 == len(train_loader):
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
    scheduler.step()

    model.eval()
    valid_loss, correct = 0.0, 0
    with torch.no_grad():
        for inputs, labels in valid_loader:
            inputs, labels = inputs.to(device), labels.to(device)
            outputs = model(inputs)
            valid_loss += criterion(outputs, labels).item() * len(inputs)
            correct += (outputs.argmax(-1) == labels).sum().item()
    n = len(valid_loader.dataset)
    print(
        f"epoch {epoch} updates {updates} train {running.item() / len(train_loader):.5f} "
        f"valid {valid_loss / n:.5f} accuracy {correct / n:.4f}"
    )

torch.save(
    {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    f"{args.out}/accumulated.pt",
)
