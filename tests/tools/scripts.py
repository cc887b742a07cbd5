"""The simplest training scripts: one takes its batches from a `DataLoader`, one cuts them by hand."""

from __future__ import annotations

__all__ = ["LAST_STEP", "MODELS", "SCRIPTS", "source"]

LAST_STEP = 12

MODELS = {
    "layers": "model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))",
    "attention": """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 48), nn.Linear(16, 1)

    def forward(self, x):
        q, k, v = self.inner(x).chunk(3, -1)
        return self.outer(nn.functional.scaled_dot_product_attention(q, k, v))


model = Attention()
""",
    "mixture": """
class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 1) for _ in range(4))

    def forward(self, x):
        tokens = x.reshape(-1, 6)
        weights, chosen = self.gate(tokens).softmax(-1).max(-1)
        out = tokens.new_zeros(len(tokens), 1)
        for number, expert in enumerate(self.experts):
            of = (chosen == number).nonzero().flatten()
            out.index_add_(0, of, expert(tokens[of]) * weights[of, None])
        return out.view(*x.shape[:2], 1)


model = Mixture()
""",
}

_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 8, 6)
y = x.sum(-1, keepdim=True).sin()
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1){idle}
step = 0
for epoch in range(2):
    for {batches}:
        step += 1{hold}
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), flush=True)
"""

_HOLD = """
        while step == 9 and os.path.exists("hold"):
            time.sleep(0.01)"""
# Ranks that do not wait for one another may be here at any time: one that loads something can be saved.
_LOADS = """
            with torch.no_grad():
                next(idle)"""

SCRIPTS = {
    "loader": "inputs, targets in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)",
    "bare": "inputs, targets in zip(x.split(16), y.split(16))",
}


def source(script: str, model: str, *, holds: bool = False, apart: bool = False) -> str:
    """The text of a script with one of the models; it prints each step and its loss.

    Args:
        holds: it waits before step 9 while there is a file "hold".
        apart: ranks do not wait for one another.
    """
    hold = _HOLD + _LOADS * apart if holds else ""
    idle = "\nidle = iter(DataLoader(range(10**9)))" if holds and apart else ""
    text = _HEAD.format(model=MODELS[model], batches=SCRIPTS[script], hold=hold, idle=idle).lstrip()
    return f"import os\nimport time\n\n{text}" if holds else text
