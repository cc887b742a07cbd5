"""Models of a checkpoint, read by plain torch and safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ronde.checkpoint import layouts
from ronde.checkpoint.export import export_models, find_checkpoint
from ronde.checkpoint.layouts import write_weights
from ronde.checkpoint.script_state import CapturedState
from ronde.checkpoint.state import HostCopies, Unchanged, take
from ronde.checkpoint.store import Store
from ronde.cli import entry, export
from ronde.errors import UsageError
from ronde.trace.checkpoint_manifest import CheckpointManifest


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Embedding(5, 4)
        self.last = torch.nn.Linear(4, 5, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("count", torch.tensor(3))


def held_by(**models: torch.nn.Module) -> CapturedState:
    """As the walk over a script's variables notes them: each tensor under the first name."""
    held = CapturedState()
    for name, model in models.items():
        held.modules.update(
            {f"__main__.{name}.{key}".rstrip("."): part for key, part in model.named_modules()}
        )
        for key, value in (*model.named_parameters(), *model.named_buffers()):
            held.tensors[f"__main__.{name}.{key}"] = value
    return held


def saved(folder: Path, *, step: int = 12, **models: torch.nn.Module) -> None:
    held = held_by(**models)
    state = take(held, lambda value: value, Unchanged(CapturedState()), HostCopies())
    store = Store(folder, keep=2)
    fields = {"entries": 0, "journal_bytes": 0, "boundary": "call", "seed": 1, "plan": "ddp", "ranks": 2}
    store.write(CheckpointManifest(step=step, script=("a.py"), **fields), state, b"")  # pyright: ignore[reportArgumentType]
    store.close()


def damage(place: Path) -> None:
    content = bytearray((place / "state.pt").read_bytes())
    content[-5] ^= 255
    (place / "state.pt").write_bytes(content)


def code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as end:
        entry.main(arguments)
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
            same(found, model.state_dict())


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == value.dtype
        assert torch.equal(found[key], value)


def test_in_hugging_faces_layout(tmp_path: Path) -> None:
    tied = Tied()
    saved(tmp_path, net=tied)
    assert code("export", str(tmp_path), "--out", str(tmp_path / "out"), "--to", "hf") == 0
    same(load_file(tmp_path / "out/net/model.safetensors"), tied.state_dict())


def test_a_large_model_has_several_files_and_an_index(tmp_path: Path) -> None:
    values = {f"layer.{number}": torch.full((4, number + 1), float(number)) for number in range(5)}
    write_weights(values, tmp_path / "net", "hf", largest=120)
    index = json.loads((tmp_path / "net/model.safetensors.index.json").read_text())
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in values.values())
    assert sorted(set(index["weight_map"].values())) == names
    for key, name in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "net" / name)[key], values[key])
    assert sum(len(load_file(tmp_path / "net" / name)) for name in names) == 5


def test_each_layout_can_be_asked_for(tmp_path: Path) -> None:
    assert tuple(layouts.LAYOUTS) == export.LAYOUTS
    assert code("export", str(tmp_path), "--to", "onnx") == 2
    assert code("export", str(tmp_path), "--to", "dcp") == 2  # no checkpoint is there


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    saved(tmp_path, net=Tied())
    (tmp_path / "out/net").mkdir(parents=True)
    (tmp_path / "out/net/config.json").write_text("{}")
    with pytest.raises(UsageError, match="is not empty"):
        export_models(*find_checkpoint(tmp_path, pytest.fail), tmp_path / "out", "hf")
    assert [each.name for each in (tmp_path / "out/net").iterdir()] == ["config.json"]


def test_no_model(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(UsageError, match="has no model: the script held none in a variable at that step"):
        export_models(*find_checkpoint(tmp_path, pytest.fail), tmp_path / "out")


def test_a_damaged_one_that_is_named(tmp_path: Path) -> None:
    saved(tmp_path, net=Tied())
    place = tmp_path / "step-00000012"
    damage(place)
    with pytest.raises(
        UsageError,
        match=r"is not a whole checkpoint \(its state differs from what was written.*\); name another one",
    ):
        find_checkpoint(place, pytest.fail)
    (place / "state.pt").unlink()
    with pytest.raises(UsageError, match="is not a whole checkpoint"):
        find_checkpoint(place, pytest.fail)


def test_the_newest_that_is_whole_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, net=torch.nn.Linear(2, 2))
    saved(tmp_path, step=24, net=torch.nn.Linear(3, 3))
    damage(tmp_path / "step-00000024")
    assert code("export", str(tmp_path)) == 0
    told = capfd.readouterr().err
    assert "the checkpoint of step 24" in told
    assert "damaged (its state differs from what was written); the one before it is taken" in told
    assert "net of step-00000012 as .pt and .safetensors" in told
    assert torch.load(tmp_path / "export-12/net.pt")["bias"].shape == (2,)


def test_none_is_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, net=Tied())
    damage(tmp_path / "step-00000012")
    assert code("export", str(tmp_path)) == 2
    assert f"no checkpoint in {tmp_path} is whole; name another folder" in capfd.readouterr().err


def test_an_option_of_published_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, net=Tied())
    assert code("export", str(tmp_path), "--version", "3") == 2
    assert "--version 3 applies to published models only; leave it out" in capfd.readouterr().err
