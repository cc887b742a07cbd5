"""Trains from a StatefulDataLoader, takes its state within the first epoch, and goes on from it."""

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
inputs = torch.randn(48, 10)
data = TensorDataset(inputs, inputs[:, :3].argmax(1))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def loader():
    return StatefulDataLoader(data, batch_size=8, shuffle=True)


def step(rows, labels):
    loss = nn.functional.cross_entropy(model(rows), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12g}")


first = loader()
for number, batch in enumerate(first, 1):
    step(*batch)
    if number == 2:
        state = first.state_dict()
        break

resumed = loader()
resumed.load_state_dict(state)
for _ in range(2):
    for batch in resumed:
        step(*batch)
