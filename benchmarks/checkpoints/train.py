"""The training: an ordinary script that saves nothing."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
steps, width, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
net = nn.Sequential(
    nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
inputs = torch.randn(4096, 64, device=device)
targets = inputs[:, :8].prod(1, keepdim=True)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(inputs, targets), batch_size=64, shuffle=True
)
done, mean = 0, torch.zeros((), device=device)
while done < steps:
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        mean += loss.detach()
        done += 1
        if done % 10 == 0:
            print(done, loss.item(), flush=True)
        if done == steps:
            break
torch.save((net.state_dict(), optimizer.state_dict(), mean, torch.get_rng_state()), "end.pt")
