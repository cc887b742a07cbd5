"""What the code of a model reaches where a library's class is between it and torch's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ronde.boundary.reach import Reach

LIBRARY = """
import torch

class Base(torch.nn.Module):
    def forward(self, x):
        return self.prepare(x)

    def prepare(self, x):
        return x

    def report(self, x):
        self.on_report(x)

    def on_report(self, x):
        pass
"""


@pytest.fixture
def base(tmp_path: Path) -> Any:
    path = tmp_path / "site-packages" / "a_library.py"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("a_library", path)
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    return library.Base


def _names(module: Any) -> set[str]:
    reach = Reach()
    reach.visit(module)
    return reach.names


def test_a_librarys_forward_may_call_what_was_overridden(base: Any) -> None:
    class Called(base):
        def prepare(self, x: Any) -> Any:
            return self.named_here(x)

    assert "named_here" in _names(Called())


def test_a_method_of_the_library_may_call_what_was_overridden(base: Any) -> None:
    class Asks(base):
        def forward(self, x: Any) -> Any:
            self.report(x)
            return x

        def on_report(self, x: Any) -> None:
            self.named_here = x

    assert "named_here" in _names(Asks())


def test_what_a_trainer_calls_is_not_followed_where_forward_is_the_users_own(base: Any) -> None:
    class Own(base):
        def forward(self, x: Any) -> Any:
            return x.float() * 2

        def on_report(self, x: Any) -> None:
            self.named_here = x

    assert "named_here" not in _names(Own())
