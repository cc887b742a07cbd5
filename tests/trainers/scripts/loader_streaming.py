"""Trains from a streaming dataset through a DataLoader."""

import torch
from datasets import load_dataset
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = load_dataset(
    "json", data_files=["train-0.jsonl", "train-1.jsonl"], split="train", streaming=True, cache_dir="cache"
)
data = data.shuffle(seed=7, buffer_size=16).with_format("torch")
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    data.set_epoch(epoch)
    for batch in DataLoader(data, batch_size=8):
        loss = nn.functional.cross_entropy(model(batch["row"].double()), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.12g}")
