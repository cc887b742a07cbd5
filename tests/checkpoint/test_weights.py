"""Weights of others in a checkpoint."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ronde.checkpoint.export import find_checkpoint
from ronde.checkpoint.layouts import Layout, write_weights
from ronde.checkpoint.weights import copy_with_weights, read_weights
from ronde.errors import UsageError
from ronde.testing import forked

SCRIPT = """
    import sys, torch
    net = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        net(torch.ones(4, 2)).mean().backward()
        optimizer.step()
    print(net.weight.tolist())
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of step 2, a step before its end."""
    place = tmp_path_factory.mktemp("run")
    (place / "train.py").write_text(textwrap.dedent(SCRIPT))
    run(place, "saved", "3", "--every", "2")
    return place


def run(place: Path, folder: str, steps: str, *options: str) -> str:
    words = ["run", "--ranks", "1", "-q", "--checkpoint", folder, *options, "train.py", steps]
    done = forked.run(words, directory=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("layout", ["torch", "hf", "dcp"])
def test_what_is_written_is_read(tmp_path: Path, layout: Layout) -> None:
    values = {"weight": torch.randn(3, 2), "count": torch.tensor(3), "half": torch.ones(2).half()}
    write_weights(values, tmp_path / "net", layout, largest=20)
    places = ["net"] if layout != "torch" else ["net.pt", "net.safetensors"]
    for place in places:
        found = read_weights(tmp_path / place)
        assert found.keys() == values.keys()
        for key, value in values.items():
            assert found[key].dtype == value.dtype
            assert torch.equal(found[key], value)


def test_a_run_goes_on_with_other_weights(saved: Path, tmp_path: Path) -> None:
    save_file({"weight": torch.tensor([[8.0, 9.0]]).half()}, tmp_path / "weights.safetensors")
    words = ["import", str(tmp_path / "weights.safetensors"), "saved", "--out", str(tmp_path / "begun")]
    done = forked.run(words, directory=saved)
    assert done.returncode == 0, done.stderr
    assert "step-00000002 with the weights of " in done.stderr
    # Step 3 is done, with a gradient of ones and a rate of one half.
    assert run(saved, str(tmp_path / "begun"), "3", "--resume") == "[[7.5, 8.5]]\n"
    refused = forked.run(words, directory=saved)
    assert (refused.returncode, "has checkpoints already" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"weight": torch.ones(1, 3)},
            r"weight is torch.float32 \[1, 3\] in the former, and torch.float32 \[1, 2\]",
        ),
        (
            {"weight": torch.ones(1, 2).double()},
            r"weight is torch.float64 \[1, 2\] in the former, and torch.float32",
        ),
        ({"weight": torch.ones(1, 2), "bias": torch.ones(1)}, "the former has bias, and the latter has not"),
        ({}, "the former lacks weight"),
    ],
)
def test_weights_of_another_model(
    saved: Path, tmp_path: Path, values: dict[str, torch.Tensor], said: str
) -> None:
    torch.save(values, tmp_path / "weights.pt")
    place, _ = find_checkpoint(saved / "saved", str)
    with pytest.raises(UsageError, match=f"and net of .* are not of one model: {said}"):
        copy_with_weights(place, "", tmp_path / "weights.pt", tmp_path / "begun")
    assert not (tmp_path / "begun").exists()


def test_a_model_that_is_not_there(saved: Path, tmp_path: Path) -> None:
    place, _ = find_checkpoint(saved / "saved", str)
    with pytest.raises(UsageError, match="has the models net; name one of them by --model NAME"):
        copy_with_weights(place, "other", tmp_path / "weights.pt", tmp_path / "begun")


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors", "folder"])
def test_files_that_are_no_weights(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    if name != "folder":
        (tmp_path / name).write_bytes(b"no weights at all, though it is long enough to be some")
    with pytest.raises(UsageError, match="cannot be read as weights"):
        read_weights(tmp_path / name)
