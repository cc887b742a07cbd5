"""GPT and decoder models, on batches from one text."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
import torch.nn.functional as F
from drawn import Text
from torch import Tensor, nn
from workload import Workload

LENGTH, VOCABULARY = 64, 8000


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.norm_2(x))


class GPT(nn.Module):
    """A decoder with tied embeddings; returns logits [batch, length, vocabulary]."""

    def __init__(
        self,
        width: int = 256,
        layers: int = 4,
        heads: int = 4,
        vocabulary: int = VOCABULARY,
        length: int = LENGTH,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.size(1), device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))


def text(_: int) -> Text:
    """One text for any number of samples: places are drawn with replacement."""
    return Text(VOCABULARY, LENGTH)


def next_word_loss(logits: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), words.view(-1))


GPT_SMALL = Workload(
    batch_size=32,
    steps=25,
    warm_up=5,
    data=text,
    model=GPT,
    optimizer=partial(torch.optim.AdamW, lr=3e-4),
    loss=next_word_loss,
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Size of a model and its batches.

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
    """Train from scratch with AdamW; its state has the type of the parameters."""
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
