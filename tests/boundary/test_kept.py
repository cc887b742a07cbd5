"""What a model keeps is pictured so that changes show, and each object once."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import nn

from ronde.boundary import kept
from ronde.boundary.kept import module_state
from ronde.boundary.rehearsal.trial import same


class Settings:
    def __init__(self) -> None:
        self.width, self.names = 3, ["a", "b"]
        self.table = torch.zeros(3)


class Layer(nn.Module):
    def __init__(self, settings: Any) -> None:
        super().__init__()
        self.settings = settings


def layers(settings: Any, count: int = 20) -> nn.Sequential:
    return nn.Sequential(*(Layer(settings) for _ in range(count)))


def test_what_layers_share_is_pictured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: collections.Counter[int] = collections.Counter()
    plain = kept._inside

    def counted(value: Any) -> Any:
        asked[id(value)] += 1
        return plain(value)

    monkeypatch.setattr(kept, "_inside", counted)
    settings = Settings()
    module_state(layers(settings))
    assert asked[id(settings)] == 1


def test_a_change_of_what_layers_share_shows() -> None:
    settings = Settings()
    model = layers(settings)
    before = module_state(model)
    assert same(before, module_state(model))
    for change in (
        lambda: setattr(settings, "width", 4),
        lambda: settings.names.append("c"),
        lambda: settings.table.add_(1.0),
        lambda: setattr(model[7], "settings", 5),
    ):
        change()
        after = module_state(model)
        assert not same(before, after)
        before = after


def test_a_layer_that_gets_other_settings_of_its_own_shows() -> None:
    model = layers(Settings())
    before = module_state(model)
    other = Settings()
    other.names.append("c")
    model[7].settings = other
    after = module_state(model)
    assert [name for name in after if not same(before[name], after[name])] == ["7.settings"]


def test_what_comes_first_deep_inside_is_looked_into_where_it_is_nearer() -> None:
    inner = {"a": {"b": {"c": {"d": 1}}}}
    model = nn.Sequential(Layer([[[[inner]]]]), Layer(inner))
    before = module_state(model)
    inner["a"]["b"]["c"]["d"] = 2
    after = module_state(model)
    assert same(before["0.settings"], after["0.settings"])
    assert not same(before["1.settings"], after["1.settings"])


def test_what_leads_to_itself_is_pictured() -> None:
    settings = Settings()
    settings.names = [settings]  # pyright: ignore[reportAttributeAccessIssue]
    assert same(module_state(layers(settings)), module_state(layers(settings)))


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        ({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ([1, 2], [1, 2, 3], False),
        ([1], (1,), False),
        ([1], [True], False),
        ([1.0], [1.0 + 1e-9], True),
        ([float("nan")], [float("nan")], True),
        ([torch.zeros(2)], [torch.zeros(2) + 1e-12], False),
        ([torch.ones(2)], [torch.ones(2) + 1e-6], True),
        ([torch.ones(2)], [torch.ones(3)], False),
    ],
)
def test_pictures_are_alike_where_all_in_them_is(a: Any, b: Any, alike: bool) -> None:
    assert same(a, b) is alike
