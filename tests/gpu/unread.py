"""A plain script whose steps read nothing. Prints how often the host waited for the device in some."""

import traceback
import warnings

import torch
from torch import nn

WARM_UP, STEPS = 9, 4  # between the calls that ronde compares, 1, 2, 4, 8 and 16

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [
    (torch.randn(16, 64, device=device), torch.randint(0, 4, (16,), device=device))
    for _ in range(WARM_UP + STEPS)
]
waits = []


def show(message, category, filename, lineno, file=None, line=None):
    if "synchronizing CUDA operation" in str(message):
        waits.append(message)
        traceback.print_stack()


warnings.showwarning = show
warnings.simplefilter("always")
for number, (x, y) in enumerate(batches):
    if device == "cuda" and number == WARM_UP:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if device == "cuda":
    torch.cuda.set_sync_debug_mode("default")
print(len(waits), "waits")
