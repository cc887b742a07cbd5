"""A plain script: equal blocks, and Adam. Prints its losses, and the most that its device has had to hold."""

import torch
from torch import nn

WIDTH, BLOCKS = 2048, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.relu(self.layer(x))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS))).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for step in range(6):
        x = torch.randn(8, WIDTH).cuda()
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if step == 1:  # the model has been made, and observed
            torch.cuda.reset_peak_memory_stats()
        print(f"{loss.item():.9g}", flush=True)
    print(torch.cuda.max_memory_allocated())
    state = optimizer.state[model[0].layer.weight]
    print(state["step"].device.type, state["exp_avg"].device.type, model[0].layer.weight.device.type)


if __name__ == "__main__":
    main()
