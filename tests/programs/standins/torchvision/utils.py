"""Grids of images, and their files."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image

__all__ = ["make_grid", "save_image"]


def make_grid(tensor: Any, nrow: int = 8, padding: int = 2, normalize: bool = False, **options: Any) -> Any:
    """Images side by side, so many in a row."""
    images = torch.stack(list(tensor)) if isinstance(tensor, (list, tuple)) else tensor
    images = images.reshape(-1, *images.shape[-3:]) if images.dim() > 3 else images[None]
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    if normalize:
        low, high = images.min(), images.max()
        images = (images - low) / max(float(high - low), 1e-5)
    columns = min(nrow, len(images))
    rows = -(-len(images) // columns)
    images = F.pad(images, (0, padding, 0, padding))
    images = torch.cat([images, images.new_zeros(rows * columns - len(images), *images.shape[1:])])
    lines = [torch.cat(list(images[row * columns : (row + 1) * columns]), 2) for row in range(rows)]
    return torch.cat(lines, 1)


def save_image(tensor: Any, fp: Any, **options: Any) -> None:
    """Such a grid, as the file that its name asks for."""
    grid = make_grid(tensor, **options).detach().mul(255).add(0.5).clamp(0, 255)
    Image.fromarray(grid.permute(1, 2, 0).to("cpu", torch.uint8).numpy()).save(fp)
