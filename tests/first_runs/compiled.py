"""Train a model that torch's compiler turns into C++, or into Triton's kernels on a CUDA device."""

import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x, y = torch.randn(12, 6, device=device), torch.randn(12, 3, device=device)
layers = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 3)).to(device)
model = torch.compile(layers)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for step in range(3):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
