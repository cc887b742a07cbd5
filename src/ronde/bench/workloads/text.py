"""A long text of which batches are drawn, without a loader."""

from __future__ import annotations

import torch
from torch import Tensor


class Text:
    """Random words; a batch is windows at random places, each with the window one word further."""

    def __init__(self, vocabulary: int, window: int, words: int = 100_000):
        self.words = torch.randint(vocabulary, (words,))
        self.window = window

    def draw(self, count: int, *, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """The windows of `rank`, of `count` that all ranks have together.

        The places of all are drawn, so that every number of ranks sees the same batches.
        """
        starts = torch.randint(len(self.words) - self.window, (count,)).chunk(ranks)[rank]
        x = torch.stack([self.words[start : start + self.window] for start in starts])
        y = torch.stack([self.words[start + 1 : start + 1 + self.window] for start in starts])
        return x, y
