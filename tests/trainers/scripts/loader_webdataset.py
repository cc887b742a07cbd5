"""Trains from shards of tar files, as webdataset's documentation shows."""

import torch
import webdataset
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = (
    webdataset.WebDataset("train-{0..3}.tar", shardshuffle=4, seed=7)
    .shuffle(16, seed=7)
    .decode()
    .to_tuple("npy", "cls")
    .batched(8)
)
loader = webdataset.WebLoader(data, batch_size=None)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    for rows, labels in loader:
        loss = nn.functional.cross_entropy(model(torch.as_tensor(rows)), torch.as_tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.12g}")
