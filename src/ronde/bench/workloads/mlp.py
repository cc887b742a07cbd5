"""Perceptrons of two hidden layers: more communication than computation."""

from __future__ import annotations

from functools import partial

import torch
from drawn import CLASSES, TensorRows, images
from torch import nn
from workload import Workload


def mlp(width: int, inputs: int = 784) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def digits(_: int) -> TensorRows:
    """Random images of 8 x 8 in ten classes, told by their brightest corner."""
    pixels = torch.randn(2000, 1, 8, 8)
    return TensorRows(pixels, pixels[:, 0, :2, :5].flatten(1).argmax(1))


_sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)

MLP = Workload(batch_size=64, steps=160, warm_up=10, data=images, model=partial(mlp, 2048), optimizer=_sgd)
# Some hundred steps per second, so that the overhead of a step can be seen.
MLP_512 = Workload(
    batch_size=32, steps=1500, warm_up=100, data=images, model=partial(mlp, 512), optimizer=_sgd
)
# Thousands of steps per second, so that a step consists of communication and ronde's overhead.
MLP_20K = Workload(
    batch_size=64,
    steps=4000,
    warm_up=200,
    data=digits,
    model=partial(mlp, 112, 64),
    optimizer=_sgd,
    reads_loss=True,
)
