"""Wide & Deep Learning for Recommender Systems (Cheng and others, 2016)."""

import torch
from torch import nn

import ronde


class WideAndDeep(nn.Module):
    """A weight for each id and each cross of two, beside a perceptron on embeddings.

    FTRL trains the wide part, as in the paper. Crosses are ids of a table without a bound, so they need
    no list of which there are.
    """

    def __init__(self, numbers, fields, crosses, dim=16):
        super().__init__()
        self.crosses = crosses
        self.wide = ronde.EmbeddingTable(
            1, optimizer=ronde.table.FTRL(lr=0.1, l2=1.0), init=ronde.table.Zeros()
        )
        # Small first values: an id that was never seen then says little.
        self.deep = ronde.EmbeddingTable(
            dim,
            optimizer=ronde.table.Adagrad(lr=0.05, initial_accumulator_value=1e-3),
            init=ronde.table.Normal(0.01),
        )
        self.top = nn.Sequential(
            nn.Linear(numbers + fields * dim, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, dense, ids):
        wide = ids
        if self.crosses:
            first, second = zip(*self.crosses, strict=True)
            crossed = ids[:, list(first)] * 0x9E3779B97F4A7C1 + ids[:, list(second)]  # wraps around
            wide = torch.cat([ids, crossed], dim=1)
        deep = torch.cat([dense, self.deep(ids).flatten(1)], dim=1)
        return (self.top(deep) + self.wide(wide).sum(dim=1)).squeeze(1)
