"""A long text of which batches are drawn."""

from __future__ import annotations

import torch
from drawn import Drawn
from torch import Tensor


class Text(Drawn):
    """Random words; a batch is windows at random places, each with the window one word further."""

    def __init__(self, vocabulary: int, window: int, words: int = 100_000):
        super().__init__(words - window)
        self.words = torch.randint(vocabulary, (words,))
        self.window = window

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.stack([self.words[start : start + self.window] for start in places])
        y = torch.stack([self.words[start + 1 : start + 1 + self.window] for start in places])
        return x, y
