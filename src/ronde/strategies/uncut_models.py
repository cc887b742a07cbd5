"""Models without anything that `tensor=N` could cut."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ronde.policies.tensor_structure import ParameterPlacement

__all__ = ["UncutModels"]


class UncutModels:
    """Collects the models that are cut for the first time.

    Args:
        item: plan item that cuts.
    """

    def __init__(self, item: str) -> None:
        self._item = item
        self._found: dict[str, None] = {}
        self._some_are_cut = False

    def tell(self, model: nn.Module, found: Sequence[ParameterPlacement]) -> None:
        """Record the placements of a model that is cut."""
        if any(each.cut is not None for each in found):
            self._some_are_cut = True
        elif found:
            self._found.setdefault(type(model).__name__)

    def notes(self) -> list[str]:
        """Return notes for the user at the end."""
        if self._some_are_cut or not self._found:
            return []
        return [
            f"{self._item} cuts nothing of {', '.join(self._found)}: every rank of a group computes all of "
            f"it, right but no faster; `ronde plan show --script` lists why [R226]"
        ]
