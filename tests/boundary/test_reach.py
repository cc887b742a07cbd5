"""What the code of a model reaches where a library's class is between it and torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ronde.boundary.reach import Reach

torchmetrics = pytest.importorskip("torchmetrics")


def _names(module: Any) -> set[str]:
    reach = Reach()
    reach.visit(module)
    return reach.names


class Called(torchmetrics.Metric):  # type: ignore[misc]
    """The library's own forward calls what is here."""

    def update(self, x: torch.Tensor) -> None:
        self.named_in_update = x

    def compute(self) -> None: ...


class Own(Called):
    """Nothing of the library runs when this is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * 2


class Asks(Called):
    """The library is asked by a name of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._reduce_states({})
        return x


@pytest.mark.parametrize(("kind", "reached"), [(Called, True), (Asks, True), (Own, False)])
def test_overridden_methods_are_followed_where_the_librarys_code_may_run(kind: Any, reached: bool) -> None:
    assert ("named_in_update" in _names(kind())) == reached
