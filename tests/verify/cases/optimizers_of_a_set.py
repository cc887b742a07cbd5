"""Each parameter has an optimizer, made when it is first stepped, in the order of a set (as Pyro)."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {}
for step in range(4):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    for parameter in set(model.parameters()):  # by their addresses: another order in each process
        if parameter not in optimizers:
            optimizers[parameter] = torch.optim.Adam([parameter], lr=1e-2)
        optimizers[parameter].step()
    model.zero_grad()
print(f"{loss.item():.5f}")
