"""A plain script, but that one rank is killed or sleeps in its fifth step. Arguments: kill or sleep."""

import os
import sys
import time

import torch
from torch import nn

import ronde

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(240, 16))
for step, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=24), 1):
    loss = model(x.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}", flush=True)
    if step == 5 and ronde.rank() == 1:
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), 9)
        time.sleep(60)
