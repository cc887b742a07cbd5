"""What a trial could not put back is known by its class, whether or not its library is there."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from ronde.boundary.kept import Behind

WRITERS = [
    *[("csv", "DictWriter"), ("_csv", "writer"), ("zipfile", "ZipFile"), ("h5py._hl.files", "HLObject")],
    *[("torch.utils.tensorboard.writer", "SummaryWriter"), ("tensorboardX.writer", "SummaryWriter")],
    *[("tqdm.std", "tqdm"), ("wandb.sdk.wandb_run", "Run"), ("mlflow.tracking.client", "MlflowClient")],
    *[("rich.progress", "Progress"), ("shelve", "Shelf"), ("lmdb", "Transaction")],
]


@pytest.mark.parametrize(("module", "name"), WRITERS, ids=[f"{module}.{name}" for module, name in WRITERS])
def test_what_writes_has_no_way_back(module: str, name: str) -> None:
    base = type(name, (), {"__module__": module})
    writer: Any = type("Own", (base,), {"__module__": module, "write": lambda self, value: None})()

    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            writer.write(1)
            return x

    assert Behind(Writes()).irrevocable() == "the Own writer"


def test_what_logs_to_the_only_run_has_no_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker: Any = types.ModuleType("wandb")
    monkeypatch.setitem(globals(), "wandb", tracker)

    class Logs(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wandb.log({"calls": 1})  # type: ignore[name-defined]  # noqa: F821
            return x

    assert Behind(Logs()).irrevocable() == "the module wandb"


def test_a_generator_of_pythons_is_not_taken_for_one_of_random_numbers() -> None:
    words = (word for word in "abc")

    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, next(words)

    assert Behind(Reads()).irrevocable() == "the iterator words"
