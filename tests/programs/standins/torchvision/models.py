"""Residual networks with the parts and names of torchvision's, untrained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["ResNet", "resnet18", "resnet34", "resnet50"]


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut, which changes the size where they do."""

    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + shortcut)


class Bottleneck(nn.Module):
    """Three convolutions, the middle one a quarter as wide, beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        width = outputs // self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.relu(self.bn3(self.conv3(out)) + shortcut)


class ResNet(nn.Module):
    """Four groups of blocks, each half as large and twice as wide as the one before."""

    def __init__(
        self,
        depths: tuple[int, ...],
        num_classes: int = 1000,
        block: type[BasicBlock | Bottleneck] = BasicBlock,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        width = 64
        for place, depth in enumerate(depths):
            outputs, stride = 64 * 2**place * block.expansion, 1 if place == 0 else 2
            blocks = [block(width, outputs, stride)]
            blocks += [block(outputs, outputs, 1) for _ in range(depth - 1)]
            setattr(self, f"layer{place + 1}", nn.Sequential(*blocks))
            width = outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name, part in self.named_children():
            x = torch.flatten(part(x), 1) if name == "avgpool" else part(x)
        return x


def resnet18(**options: Any) -> ResNet:
    return ResNet((2, 2, 2, 2), options.get("num_classes", 1000))


def resnet34(**options: Any) -> ResNet:
    return ResNet((3, 4, 6, 3), options.get("num_classes", 1000))


def resnet50(**options: Any) -> ResNet:
    return ResNet((3, 4, 6, 3), options.get("num_classes", 1000), Bottleneck)
