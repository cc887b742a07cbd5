"""Models of a checkpoint, read by plain torch and safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ronde.checkpoint.export import export_models, find_checkpoint
from ronde.checkpoint.held import Held
from ronde.checkpoint.manifest import Manifest
from ronde.checkpoint.state import HostCopies, Unchanged, take
from ronde.checkpoint.store import Store
from ronde.cli import app
from ronde.errors import UsageError


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Embedding(5, 4)
        self.last = torch.nn.Linear(4, 5, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("count", torch.tensor(3))


def held_by(**models: torch.nn.Module) -> Held:
    """As the walk over a script's variables notes them: each tensor under the first name."""
    held = Held()
    for name, model in models.items():
        held.modules.update(
            {f"__main__.{name}.{key}".rstrip("."): part for key, part in model.named_modules()}
        )
        for key, value in (*model.named_parameters(), *model.named_buffers()):
            held.tensors[f"__main__.{name}.{key}"] = value
    return held


def saved(folder: Path, **models: torch.nn.Module) -> None:
    held = held_by(**models)
    state = take(held, lambda value: value, Unchanged(Held()), HostCopies())
    store = Store(folder, keep=2)
    fields = {"entries": 0, "journal_bytes": 0, "boundary": "call", "seed": 1, "plan": "ddp", "ranks": 2}
    store.write(Manifest(step=12, script="a.py", **fields), state, b"")  # pyright: ignore[reportArgumentType]
    store.close()


def code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as end:
        app.main(arguments)
    return end.value.code


def test_models_are_loaded_by_others(tmp_path: Path) -> None:
    tied, other = Tied(), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    saved(tmp_path, net=tied, teacher=other)
    assert code("export", str(tmp_path), "--out", str(tmp_path / "out")) == 0
    for name, model in (("net", tied), ("teacher", other)):
        for found in (
            torch.load(tmp_path / f"out/{name}.pt"),
            load_file(tmp_path / f"out/{name}.safetensors"),
        ):
            assert found.keys() == model.state_dict().keys()
            for key, value in model.state_dict().items():
                assert torch.equal(found[key], value)


def test_what_is_damaged_or_has_no_model_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "none")
    place = find_checkpoint(tmp_path / "none")
    assert place is not None
    with pytest.raises(UsageError, match="has no model: the script held none in a variable at that step"):
        export_models(place, tmp_path / "out")
    content = bytearray((place / "state.pt").read_bytes())
    content[-5] ^= 255
    (place / "state.pt").write_bytes(content)
    with pytest.raises(UsageError, match=r"is no whole checkpoint \(its state is not what was written\)"):
        export_models(place, tmp_path / "out")
    assert find_checkpoint(tmp_path) is None


def test_an_option_of_published_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, net=Tied())
    assert code("export", str(tmp_path), "--version", "3") == 2
    assert "--version 3 is for what a run publishes; leave it out" in capfd.readouterr().err
