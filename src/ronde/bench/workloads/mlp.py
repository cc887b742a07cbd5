"""Perceptrons 784-width-width-10: more communication than computation."""

from __future__ import annotations

from functools import partial

import torch
from images import CLASSES, images
from torch import nn
from workload import Workload


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


_sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)

MLP = Workload(batch_size=64, steps=160, warm_up=10, data=images, model=partial(mlp, 2048), optimizer=_sgd)
# Some hundred steps a second: what a step costs beside its arithmetic can be seen.
MLP_512 = Workload(
    batch_size=32, steps=1500, warm_up=100, data=images, model=partial(mlp, 512), optimizer=_sgd
)
