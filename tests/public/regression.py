"""As pytorch/examples regression: a polynomial is fitted on endless random batches until it is good enough."""

from itertools import count

import torch
import torch.nn.functional as F

torch.manual_seed(4)
POLY_DEGREE = 4
W_target = torch.randn(POLY_DEGREE, 1) * 2
b_target = torch.randn(1) * 2


def make_features(x):
    x = x.unsqueeze(1)
    return torch.cat([x**i for i in range(1, POLY_DEGREE + 1)], 1)


def f(x):
    return x.mm(W_target) + b_target.item()


def get_batch(batch_size=32):
    random = torch.rand(batch_size)
    x = make_features(random)
    return x, f(x)


fc = torch.nn.Linear(W_target.size(0), 1)
for batch_idx in count(1):
    batch_x, batch_y = get_batch()
    fc.zero_grad()
    output = F.smooth_l1_loss(fc(batch_x), batch_y)
    loss = output.item()
    output.backward()
    for param in fc.parameters():
        param.data.add_(-0.1 * param.grad)
    if loss < 2e-2:
        break
print(f"Loss: {loss:.6f} after {batch_idx} batches")
print("==> Learned function:", [round(w, 4) for w in fc.weight.view(-1).tolist()], round(fc.bias.item(), 4))
