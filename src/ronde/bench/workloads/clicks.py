"""A recommender over a million ids: a table here, `nn.Embedding` in twins.

The rows begin with the same values, and both are updated by plain gradient descent, so both train alike.
"""

from __future__ import annotations

from functools import partial

import torch
from drawn import TensorRows
from torch import nn
from workload import Workload

FIELDS, DIM = 8, 16


class Recommender(nn.Module):
    """A perceptron on the rows of a sample's ids."""

    def __init__(self, embedding: nn.Module):
        super().__init__()
        self.embedding = embedding
        self.top = nn.Sequential(nn.Linear(FIELDS * DIM, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, ids):
        return self.top(self.embedding(ids).flatten(1))


def with_table() -> Recommender:
    import ronde

    return Recommender(ronde.EmbeddingTable(DIM, optimizer=ronde.table.SGD()))


def with_dense(ids: int) -> Recommender:
    model = with_table()
    # Without a draw of its own, after which all batches would be others than the script's.
    rows = model.embedding(torch.arange(ids)).detach()
    model.embedding = nn.Embedding.from_pretrained(rows, freeze=False)
    return model


def clicks(ids: int, samples: int) -> TensorRows:
    """Draw ids by the square of a uniform number, and a click for some."""
    numbers = (torch.rand(max(samples, 20_000), FIELDS, dtype=torch.float64).square() * ids).long()
    return TensorRows(numbers, ((numbers % 7).sum(1) % 2))


def over(ids: int, steps: int) -> Workload:
    return Workload(
        batch_size=512,
        steps=steps,
        warm_up=5,
        data=partial(clicks, ids),
        model=with_table,
        twin_model=partial(with_dense, ids),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )


CLICKS_1M, CLICKS_4M = over(1_000_000, 60), over(4_000_000, 30)
