"""Generators of an accelerator of any maker; one is made up here."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from ronde.rng.device_states import device_generator, device_states, same_draws, set_device_states


class MadeUp(types.SimpleNamespace):
    """torch's module of a device: two generators, in use or not."""

    def __init__(self) -> None:
        super().__init__(used=True, default_generators=[torch.Generator() for _ in range(2)])

    def is_initialized(self) -> bool:
        return self.used

    def device_count(self) -> int:
        return len(self.default_generators)

    def current_device(self) -> int:
        return 1

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [each.get_state() for each in self.default_generators]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self.default_generators, states, strict=True):
            generator.set_state(state)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    made = MadeUp()
    device: Any = torch.device("xpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: device)
    monkeypatch.setattr(torch, "get_device_module", lambda _: made)
    return made


def test_states_are_taken_and_put_back(module: MadeUp) -> None:
    states = device_states()
    drawn = [torch.rand(3, generator=each) for each in module.default_generators]
    set_device_states([*states, states[0]])  # of a run with one device more
    for generator, expected in zip(module.default_generators, drawn, strict=True):
        assert torch.equal(torch.rand(3, generator=generator), expected)
    assert device_generator() is module.default_generators[1]


def test_a_device_that_is_not_in_use_is_not_asked_but_may_be_told(module: MadeUp) -> None:
    """A resumed script may use its device later than its states are put back."""
    states = module.get_rng_state_all()
    expected = torch.rand(3, generator=module.default_generators[0])
    module.used = False
    assert device_states() == []
    assert device_generator() is None
    set_device_states(states)
    assert torch.equal(torch.rand(3, generator=module.default_generators[0]), expected)


def test_the_host_alone_has_no_device_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    assert device_states() == []
    assert device_generator() is None
    set_device_states([torch.empty(3, dtype=torch.uint8)])
    for on_device in (False, True):
        before = torch.get_rng_state()
        with same_draws(on_device=on_device, enabled=True):
            torch.rand(3)
        assert torch.equal(torch.get_rng_state(), before)
