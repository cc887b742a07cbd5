"""Batches made by processes of the script's own, which hand them over in a queue: who comes first is chance."""

import time
from multiprocessing import Process, Queue

import numpy as np
import torch
from torch import nn


def make(queue: Queue, seed: int) -> None:
    draw = np.random.default_rng(seed)
    while True:
        time.sleep(float(np.random.default_rng().uniform(0, 0.02)))
        queue.put((draw.normal(size=(16, 4)).astype("float32"), seed))


if __name__ == "__main__":
    torch.manual_seed(0)
    queue: Queue = Queue(maxsize=30)
    for seed in range(3):
        Process(target=make, args=(queue, seed), daemon=True).start()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = []
    for step in range(30):
        rows, maker = queue.get()
        order.append(maker)
        x = torch.from_numpy(rows)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"{len(order)} batches by makers",
        "".join(map(str, order)),
        f"{loss.item():.6f}",
        f"{model.weight.sum().item():.6f}",
    )
