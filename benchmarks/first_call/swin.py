"""Swin-T on images of 224 x 224, with attention in shifted windows."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from drawn import CLASSES, TensorRows
from torch import Tensor, nn
from workload import Workload

WINDOW = 7


class WindowAttention(nn.Module):
    """Attention among the patches of each window, with a bias for each distance."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.distances = nn.Parameter(torch.randn((2 * WINDOW - 1) ** 2, heads) * 0.02)
        rows, columns = torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")
        places = torch.stack([rows.flatten(), columns.flatten()])
        apart = places[:, :, None] - places[:, None, :] + WINDOW - 1
        self.register_buffer("pairs", apart[0] * (2 * WINDOW - 1) + apart[1], persistent=False)

    def forward(self, windows: Tensor, mask: Tensor | None) -> Tensor:
        """Attend in [images, windows, patches, width], with a mask [windows, 1, patches, patches]."""
        images, count, patches, width = windows.shape
        qkv = self.qkv(windows).view(images, count, patches, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)
        bias = self.distances[self.pairs].permute(2, 0, 1)  # pyright: ignore[reportArgumentType]
        bias = bias if mask is None else bias + mask
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(attended.transpose(2, 3).reshape(images, count, patches, width))


class Block(nn.Module):
    """Attention in windows that begin `shift` patches later, and a feed-forward layer."""

    def __init__(self, width: int, heads: int, size: int, shift: int):
        super().__init__()
        self.shift = 0 if size <= WINDOW else shift
        self.norm_1, self.attention = nn.LayerNorm(width), WindowAttention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", _mask(size, self.shift), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        images, height, across, width = x.shape
        shifted = torch.roll(self.norm_1(x), (-self.shift, -self.shift), (1, 2))
        attended = self.attention(_windows(shifted), self.mask)
        grid = attended.view(images, height // WINDOW, across // WINDOW, WINDOW, WINDOW, width)
        whole = grid.transpose(2, 3).reshape(images, height, across, width)
        x = x + torch.roll(whole, (self.shift, self.shift), (1, 2))
        return x + self.feed_forward(self.norm_2(x))


def _windows(x: Tensor) -> Tensor:
    """[images, height, across, width] as [images, windows, patches, width]."""
    images, height, across, width = x.shape
    grid = x.view(images, height // WINDOW, WINDOW, across // WINDOW, WINDOW, width)
    return grid.transpose(2, 3).reshape(images, -1, WINDOW * WINDOW, width)


def _mask(size: int, shift: int) -> Tensor | None:
    """Keeps patches apart that only the shift has brought into one window."""
    if not shift:
        return None
    band = torch.bucketize(torch.arange(size), torch.tensor([size - WINDOW, size - shift]), right=True)
    region = (band[:, None] * 3 + band).view(1, size, size, 1)
    inside = _windows(region).squeeze(-1)[0]
    return torch.where(inside[:, None, :, None] == inside[:, None, None, :], 0.0, -100.0)


class Merge(nn.Module):
    """Four neighbours become one patch of twice the width."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """Swin-T (Liu et al. 2021) without stochastic depth: images to logits."""

    def __init__(self, width: int = 96, depths: tuple[int, ...] = (2, 2, 6, 2), size: int = 56):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        stages: list[nn.Module] = []
        for place, depth in enumerate(depths):
            if place:
                stages.append(Merge(width))
                width, size = 2 * width, size // 2
            heads = width // 32
            stages += [Block(width, heads, size, (WINDOW // 2) * (turn % 2)) for turn in range(depth)]
        self.stages, self.norm = nn.Sequential(*stages), nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(self.patches(images).permute(0, 2, 3, 1))
        return self.head(self.norm(self.stages(x)).mean((1, 2)))


def photographs(count: int) -> TensorRows:
    return TensorRows(torch.randn(8, 3, 224, 224), torch.randint(CLASSES, (8,)))


SWIN_T = Workload(
    batch_size=8,
    steps=8,
    warm_up=2,
    data=photographs,
    model=Swin,
    optimizer=partial(torch.optim.AdamW, lr=3e-4),
)
