"""A folder of versions, made without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

import ronde
from ronde.server.serving.manifest import TableEntry
from ronde.server.serving.program import Example, export, without_tables
from ronde.server.serving.publication import Publication, Version
from ronde.server.table.delta import all_rows, changed_rows


class Model(nn.Module):
    """A table, bags of another, and layers over them."""

    def __init__(self) -> None:
        super().__init__()
        self.user = ronde.EmbeddingTable(4, optimizer=ronde.table.SGD(), max_rows=10_000)
        self.words = ronde.EmbeddingTable(3, pooling="mean", max_rows=10_000)
        self.top = nn.Sequential(
            nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 1)
        )

    def forward(self, x: torch.Tensor, *, bags: Any, scale: float = 1.0) -> dict[str, torch.Tensor]:
        users = self.user(x[:, :2].long() % 50).flatten(1)
        top = self.top(torch.cat([users, self.words(*bags), x[:, 2:]], 1))
        return {"score": torch.sigmoid(top).squeeze(1) * scale}


def inputs(rows: int) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    x = torch.cat([torch.randint(0, 90, (rows, 2)).float(), torch.randn(rows, 1)], 1)
    return x, (torch.randint(0, 40, (3 * rows,)), torch.arange(0, 3 * rows, 3))


class Run:
    """A model that is trained and published a step at a time."""

    def __init__(self, folder: Path, *, program: bool = True) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = Model()
        self.tables = {"user": self.model.user, "words": self.model.words}
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self._publication = Publication(folder, rank=0, writers=1)
        self._program = b""
        if program:
            x, bags = inputs(8)
            self._program = export(self.model, Example.of((x,), {"bags": bags}))
        for table in self.tables.values():
            changed_rows(table.table)
        self.version = self._publication.begins_at - 1

    def step(self) -> None:
        x, bags = inputs(16)
        self._optimizer.zero_grad()
        self.model(x, bags=bags)["score"].square().sum().backward()
        self._optimizer.step()

    def publish(self, *, whole: bool = False) -> int:
        follows = self._publication.durable
        whole = whole or not follows
        changed = {name: changed_rows(table.table) for name, table in self.tables.items()}
        self.version += 1
        with without_tables(self.model):
            dense = save({name: value.clone() for name, value in self.model.state_dict().items()})
        configs = {name: table.table.config for name, table in self.tables.items()}
        version = Version(
            version=self.version,
            step=self.version,
            time=1e9 + self.version,
            tables={
                name: TableEntry.of(each.dim, each.dtype, each.first_values, each.seed)
                for name, each in configs.items()
            },
            follows=follows or None,
            delta={name: delta for name, delta in changed.items() if delta} if follows else {},
            whole={name: all_rows(table.table) for name, table in self.tables.items()} if whole else {},
            dense=dense,
            program=self._program if not follows else b"",
            no_program="" if self._program else "it was not asked for",
        )
        self._publication.begin(version)
        self._publication.wait()
        assert self._publication.trouble == ""
        return self.version

    def rows(self) -> np.ndarray[Any, Any]:
        return self.model.user.table.look_up(np.arange(50))

    def score(self, x: torch.Tensor, bags: Any) -> torch.Tensor:
        self.model.eval()
        with torch.no_grad():
            out = self.model(x, bags=bags)["score"]
        self.model.train()
        return out
