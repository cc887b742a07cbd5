"""Deep Learning Recommendation Model (Naumov and others, 2019)."""

import torch
from torch import nn

import ronde


class DLRM(nn.Module):
    """A perceptron makes the numbers a vector beside the ids'; another sees all pairs' dot products."""

    def __init__(self, numbers, fields, crosses=(), dim=16):
        super().__init__()
        # Small first values: an id that was never seen then says little.
        self.embedding = ronde.EmbeddingTable(
            dim,
            optimizer=ronde.table.RowwiseAdagrad(lr=0.1, initial_accumulator_value=1e-4),
            init=ronde.table.Normal(0.01),
        )
        self.bottom = nn.Sequential(nn.Linear(numbers, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(dim + (fields + 1) * fields // 2, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )
        above = torch.triu_indices(fields + 1, fields + 1, offset=1)
        self.register_buffer("above", above[0] * (fields + 1) + above[1], persistent=False)

    def forward(self, dense, ids):
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), self.embedding(ids)], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)[:, self.above]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)
