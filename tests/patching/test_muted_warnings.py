from __future__ import annotations

import warnings
from typing import Any

import pytest

from ronde.patching.muted_warnings import muted_warnings


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def show(message: Any, *args: Any, **kwargs: Any) -> None:
        found.append(str(message))

    monkeypatch.setattr(warnings, "filters", [])
    monkeypatch.setattr(warnings, "showwarning", show)
    warnings.simplefilter("default")
    return found


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=1)


def test_a_warning_that_was_shown_is_not_shown_again(shown: list[str]) -> None:
    for _ in range(3):
        _warn("a step")
        with muted_warnings():
            _warn("a step")
    assert shown == ["a step"]


def test_one_that_was_muted_is_shown_the_first_time_that_it_is_not(shown: list[str]) -> None:
    with muted_warnings():
        _warn("a layer")
    assert shown == []
    _warn("a layer")
    assert shown == ["a layer"]


def test_filters_that_are_set_inside_are_gone(shown: list[str]) -> None:
    before = list(warnings.filters)
    with muted_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        with pytest.raises(UserWarning):
            _warn("a loss")
        warnings.resetwarnings()
    assert list(warnings.filters) == before
    _warn("a loss")
    assert shown == ["a loss"]
