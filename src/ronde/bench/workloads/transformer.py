"""A transformer encoder of 4 layers of 256 on sequences of 64 tokens."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workload import Workload

LENGTH, VOCABULARY, CLASSES = 64, 1000, 10


class Transformer(nn.Module):
    """An encoder over tokens that classifies the sequence."""

    def __init__(self, width: int = 256, layers: int = 4, heads: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(self.embedding(tokens) + self.position[: tokens.size(1)])
        return self.head(hidden.mean(1))


def sequences(count: int) -> TensorDataset:
    """Random tokens; the first one tells the class."""
    tokens = torch.randint(VOCABULARY, (count, LENGTH))
    return TensorDataset(tokens, tokens[:, 0] % CLASSES)


TRANSFORMER = Workload(
    batch_size=32,
    steps=40,
    warm_up=5,
    data=sequences,
    model=Transformer,
    optimizer=partial(torch.optim.AdamW, lr=3e-4),
)
# Eight layers of 512, whose products are worth cutting.
TRANSFORMER_512 = dataclasses.replace(
    TRANSFORMER, model=partial(Transformer, width=512, layers=8, heads=8), steps=6, warm_up=2
)
