"""Train rows of a table, whose loops numba compiles and keeps."""

import torch

import ronde

table = ronde.EmbeddingTable(4)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
loss = torch.zeros(())
for _ in range(3):
    loss = table(torch.arange(8)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{len(table)} rows, loss {loss.item():.4f}")
