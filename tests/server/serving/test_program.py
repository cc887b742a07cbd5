"""Models that are exported without their tables."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import ronde
from ronde.server.serving.durable import DamagedFile
from ronde.server.serving.program import Example, NoProgram, Program, export, tables_of, without_tables


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Shared(nn.Module):
    """One table at two places, in a list, and ids that the model makes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a = ronde.EmbeddingTable(2, dtype=torch.float64)
        self.parts = nn.ModuleList([self.a, nn.Linear(2, 1).double()])
        self.top = self.parts[1]

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return self.top(self.a(x * 7919) + self.parts[0](x.int())) + sum(more)


def test_a_model_that_branches_on_values_is_not_exported() -> None:
    with pytest.raises(NoProgram, match="Could not guard on data-dependent expression"):
        export(Branches(), Example.of((torch.ones(4),), {}))


def test_nor_one_that_is_called_with_something_unknown() -> None:
    example = Example.of((torch.ones(4), object()), {})
    with pytest.raises(NoProgram, match="is called with"):
        export(Branches(), example)


def test_an_example_keeps_no_values() -> None:
    example = Example.of((torch.ones(4, 2), 3), {"y": [torch.ones(1).long()]})
    assert not any(isinstance(leaf, torch.Tensor) for leaf in example.leaves)
    args, kwargs, axes = example.arguments()
    assert (args[0].shape, args[1], kwargs["y"][0].dtype) == ((4, 2), 3, torch.int64)
    assert (axes[0][1], axes[1]) == (None, {"y": [None]})


def test_tables_are_cut_out_and_put_back(tmp_path: Path) -> None:
    model = Shared()
    assert list(tables_of(model)) == ["a"]
    with without_tables(model):
        assert sorted(model.state_dict()) == ["parts.1.bias", "parts.1.weight", "top.bias", "top.weight"]
        dense = {name: value.clone() for name, value in model.state_dict().items()}
    assert model.a is model.parts[0]
    (tmp_path / "p.pt2").write_bytes(
        export(model, Example.of((torch.ones(4).long(), torch.ones(1).double()), {}))
    )
    assert model.training
    program = Program(tmp_path / "p.pt2")
    x, more = torch.arange(5), torch.ones(1, dtype=torch.float64)
    found = program.predict([x, more], dense, lambda name, ids: model.a(ids))
    assert torch.equal(found, model(x, more))
    more = torch.tensor([0.1], dtype=torch.float64)  # as JSON has it, to the bit
    found = program.predict([x.tolist(), [0.1]], dense, lambda name, ids: model.a(ids))
    assert torch.equal(found, model(x, more))


class Counts(nn.Module):
    """Remembers its calls, and draws numbers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        self.calls, self.seen = 0, [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.latest = str(x.shape)
        return self.inner(x) * random.random() * float(numpy.random.rand())


def test_an_export_leaves_a_model_and_the_generators_as_they_were() -> None:
    """Other ranks make no export, so nothing that it leaves behind may decide anything."""
    model = Counts()
    model.inner[1].eval()

    def traces() -> list[object]:
        held = [{**vars(part), "_modules": dict(part._modules)} for part in model.modules()]
        drawn = random.getstate(), numpy.random.get_state()[2], torch.get_rng_state().tolist()
        return [held, list(model.seen), drawn]

    before = traces()
    assert export(model, Example.of((torch.ones(4, 2),), {}))
    assert traces() == before


def test_something_else_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "p.pt2").write_bytes(b"PK")
    with pytest.raises(DamagedFile, match="is not a program that this torch can load"):
        Program(tmp_path / "p.pt2")
