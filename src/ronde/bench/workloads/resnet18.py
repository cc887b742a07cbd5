"""ResNet-18 on images of 28 x 28, with GroupNorm and with BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from drawn import CLASSES, images
from torch import Tensor, nn
from workload import Workload

Norm = Callable[[int], nn.Module]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each normalized, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm):
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm_1 = norm(outputs)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_2 = norm(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm_1(self.conv_1(x)))
        return torch.relu(self.norm_2(self.conv_2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) with the 3x3 stem used for small images."""

    def __init__(self, norm: Norm, channels: int = 1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 64, 3, 1, 1, bias=False), norm(64), nn.ReLU())
        stages, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages += [BasicBlock(inputs, outputs, stride, norm), BasicBlock(outputs, outputs, 1, norm)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(512, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))


def _workload(norm: Norm) -> Workload:
    return Workload(
        batch_size=32,
        steps=18,
        warm_up=3,
        data=images,
        model=partial(ResNet18, norm),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    )


RESNET18_GN = _workload(partial(nn.GroupNorm, 32))
RESNET18_BN = _workload(nn.BatchNorm2d)
