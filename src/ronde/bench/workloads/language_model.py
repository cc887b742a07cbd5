"""A decoder of any size in bfloat16: a billion parameters for a device, and a small one for a CPU."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from gpt import GPT, next_word_loss
from text import Text
from workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How large a model is, and its batches.

    Attributes:
        width, layers, heads, vocabulary: of the model; its head is tied to its embedding.
        length, rows: words of a text, and texts of a batch.
    """

    width: int
    layers: int
    heads: int
    vocabulary: int
    length: int
    rows: int

    def text(self, _: int) -> Text:
        return Text(self.vocabulary, self.length)

    def model(self) -> GPT:
        made = GPT(self.width, self.layers, self.heads, self.vocabulary, self.length)
        return made.to(torch.bfloat16)


def language_model(size: Size, *, steps: int) -> Workload:
    """Training from scratch with AdamW, whose state has the type of the parameters."""
    return Workload(
        batch_size=size.rows,
        steps=steps,
        warm_up=5,
        data=size.text,
        model=size.model,
        optimizer=partial(torch.optim.AdamW, lr=1e-4),
        loss=next_word_loss,
    )


LM_1B = language_model(
    Size(width=2048, layers=19, heads=16, vocabulary=32_000, length=1024, rows=8), steps=30
)
LM_TINY = language_model(Size(width=64, layers=4, heads=4, vocabulary=500, length=32, rows=8), steps=10)
