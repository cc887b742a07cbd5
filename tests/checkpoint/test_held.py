"""What a script's variables lead to, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ronde.checkpoint.journal import Mismatch
from ronde.checkpoint.script_state import CapturedState, held_by_script
from ronde.checkpoint.state import HostCopies, Unchanged, put_back, take


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.history = {"sums": [torch.zeros(2), torch.ones(())]}
        self.generator = torch.Generator()
        self.itself = self

    def step(self) -> None:
        self.model(torch.randn(4, 3)).sum().backward()
        self.optimizer.step()


def variables(trainer: Trainer) -> Iterator[None]:
    """Its frame, while it waits, is that of a script which is called by nothing else."""
    local = torch.full((2,), 7.0)

    def closure() -> torch.Tensor:
        return local

    yield
    assert closure() is local
    assert trainer


def found(trainer: Trainer) -> CapturedState:
    script: Any = variables(trainer)
    next(script)
    held = held_by_script(script.gi_frame)
    begin = "variables@0."
    return CapturedState(
        **{
            kind: {
                name.removeprefix(begin): value
                for name, value in getattr(held, kind).items()
                if name.startswith(begin)
            }
            for kind in ("tensors", "optimizers", "modules", "generators")
        }
    )


def test_names() -> None:
    trainer = Trainer()
    trainer.step()
    held = found(trainer)
    assert set(held.tensors) >= {
        "local",
        "trainer.model.0.weight",
        "trainer.model.0.weight.grad",
        "trainer.model.1.running_mean",
        "trainer.history['sums'][1]",
    }
    assert list(held.optimizers) == ["trainer.optimizer"]
    assert list(held.generators) == ["trainer.generator"]
    assert set(held.modules) == {"trainer.model", "trainer.model.0", "trainer.model.1"}


def test_a_state_goes_into_another_run() -> None:
    first, second = Trainer(), Trainer()
    first.step()
    first.step()
    first.history["sums"][0] += 5
    first.generator.manual_seed(3)
    first.model.mark = "seen"
    state = take(found(first), lambda value: value, Unchanged(CapturedState()), HostCopies())
    put_back(found(second), state, lambda value: value)
    second.step()
    first.step()  # with other data: only what was copied is compared
    assert second.history["sums"][0].tolist() == [5, 5]
    assert second.generator.initial_seed() == 3
    assert second.model.mark == "seen"
    steps = [each["step"].item() for each in second.optimizer.state.values()]
    assert steps == [3, 3, 3, 3]


def test_another_script_is_found_out() -> None:
    first, second = Trainer(), Trainer()
    state = take(found(first), lambda value: value, Unchanged(CapturedState()), HostCopies())
    second.history["more"] = [torch.zeros(1)]
    with pytest.raises(
        Mismatch, match=r"it has trainer.history\['more'\]\[0\], which the checkpoint does not have"
    ):
        put_back(found(second), state, lambda value: value)
    del second.history["more"], second.history["sums"][1]
    with pytest.raises(Mismatch, match=r"it no longer has trainer.history\['sums'\]\[1\]"):
        put_back(found(second), state, lambda value: value)
    second.history["sums"].append(torch.zeros(3))
    with pytest.raises(Mismatch, match=r"is torch.float32 \[3\], and was torch.float32 \[\]"):
        put_back(found(second), state, lambda value: value)


def test_data_that_nobody_wrote_to_is_left() -> None:
    data, sums = torch.zeros(300_000), torch.zeros(300_000)
    held = CapturedState(tensors={"data": data, "sums": sums})
    unchanged = Unchanged(held)
    sums += 1
    state = take(held, lambda value: value, unchanged, HostCopies())
    assert (list(state["tensors"]), state["left"]) == (["sums"], ["data"])
