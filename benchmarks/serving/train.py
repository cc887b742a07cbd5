"""Training of a recommender for some seconds, with rows for a million users."""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import nn

import ronde

BATCH, FIELDS, DIM = 512, 8, 16


class Model(nn.Module):
    """Predicts a click from rows of some ids and some numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.users = ronde.EmbeddingTable(DIM, optimizer=ronde.table.RowwiseAdagrad(lr=0.05))
        self.top = nn.Sequential(nn.Linear(FIELDS * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.users(ids).flatten(1)).squeeze(1)


def main() -> None:
    """`train.py SECONDS IDS`: fill the table, then train so long."""
    seconds, ids = float(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    model = Model()
    for begin in range(0, ids, 1 << 18):
        some = np.arange(begin, min(ids, begin + (1 << 18)))
        model.users.table.update(some, np.zeros((len(some), DIM), np.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.time() + seconds
    while time.time() < end:
        # A tenth of the ids have most of the clicks.
        users = (torch.rand(BATCH, FIELDS) ** 4 * ids).long()
        loss = nn.functional.binary_cross_entropy_with_logits(model(users), (users[:, 0] % 2).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
