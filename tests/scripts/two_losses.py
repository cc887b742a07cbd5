"""Consistency training: a clean and a noisy forward with a backward each, then two heads on one trunk."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=96)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--out", type=str, default=".")
args = parser.parse_args()

torch.manual_seed(2024)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

digits = load_digits()
X = torch.tensor(digits.data / 16.0, dtype=torch.get_default_dtype())
Y = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(X, Y), batch_size=args.batch_size, shuffle=True)

model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10)).to(device)
trunk = nn.Sequential(nn.Linear(64, 32), nn.ReLU()).to(device)
parity_head = nn.Linear(32, 2).to(device)
ink_head = nn.Linear(32, 1).to(device)

opt_model = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
opt_heads = torch.optim.Adam(
    list(trunk.parameters()) + list(parity_head.parameters()) + list(ink_head.parameters()),
    lr=1e-3,
)

for epoch in range(args.epochs):
    sums = [0.0, 0.0, 0.0, 0.0]
    for x, y in loader:
        x, y = x.to(device), y.to(device)

        # two forwards, then two backwards
        opt_model.zero_grad()
        clean = model(x)
        noisy = model(x + 0.2 * torch.randn_like(x))
        loss_clean = F.cross_entropy(clean, y)
        loss_noisy = F.kl_div(
            F.log_softmax(noisy, dim=1),
            F.softmax(clean.detach(), dim=1),
            reduction="batchmean",
        )
        loss_clean.backward()
        loss_noisy.backward()
        opt_model.step()

        # one forward, two backwards
        opt_heads.zero_grad()
        hidden = trunk(x)
        loss_parity = F.cross_entropy(parity_head(hidden), y % 2)
        loss_ink = F.mse_loss(ink_head(hidden).squeeze(1), x.mean(dim=1))
        loss_parity.backward(retain_graph=True)
        loss_ink.backward()
        opt_heads.step()

        for i, loss in enumerate([loss_clean, loss_noisy, loss_parity, loss_ink]):
            sums[i] += loss.item()
    print("epoch", epoch, " ".join("%.5f" % (s / len(loader)) for s in sums))

with torch.no_grad():
    accuracy = (model(X.to(device)).argmax(1).cpu() == Y).to(torch.get_default_dtype()).mean()
print("accuracy %.4f" % accuracy)
torch.save(
    [m.state_dict() for m in (model, trunk, parity_head, ink_head)],
    os.path.join(args.out, "models.pt"),
)
