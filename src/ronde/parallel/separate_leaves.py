"""Separate leaves for one step, with gradients that can be checked before they count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.sync.sums import GradientForm, sums_over_ranks

__all__ = ["HeldLeaves", "SeparateLeaves"]


class HeldLeaves(Protocol):
    """Parameters that a rank of a pipeline holds, as far as a call needs."""

    def leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's elements of a parameter, perhaps none; None for a replicated one."""
        ...

    def stand_in(self, parameter: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
        """Return a parameter's replacement in modules of this stage, or None.

        Args:
            leaf: elements of this rank.
        """
        ...

    def run(self, unit: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module of this rank's stage; return its output."""
        ...

    def watched(self) -> Any:
        """Raise an exception at uses of another stage's parameters inside the `with` block."""
        ...


class SeparateLeaves:
    """Leaves that share the elements of another `HeldLeaves`.

    Args:
        held: leaves that the rank holds.
        comm: ranks of the pipeline.
        on_new: callback with each new leaf, and the leaf that it replaces.
    """

    def __init__(
        self, held: HeldLeaves, comm: Comm, on_new: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        self._held, self._on_new = held, on_new
        self._comm = comm
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._shared: list[tuple[torch.Tensor, torch.Tensor]] = []

    def stand_in(self, parameter: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
        return self._held.stand_in(parameter, leaf)

    def run(self, unit: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._held.run(unit, forward, args, kwargs)

    def watched(self) -> Any:
        return self._held.watched()

    def leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        leaf = self._held.leaf(parameter)
        if leaf is None or not leaf.requires_grad:
            return leaf
        known = self._own.get(id(parameter))
        if known is None or known[0] is not leaf:
            known = self._own[id(parameter)] = self._other(leaf)
        return known[1]

    def of_all_ranks(self, parameters: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Create leaves for replicated parameters; return them by parameter id."""
        shared = [each for each in parameters if each.requires_grad and self._held.leaf(each) is None]
        self._shared = [self._other(each) for each in shared]
        return {id(each): leaf for each, leaf in self._shared}

    def _other(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        other = leaf.detach().requires_grad_()
        self._on_new(other, leaf)
        return leaf, other

    def gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the leaves that have gradients, and their gradients. A collective.

        Gradients of replicated parameters are summed over ranks.
        """
        forms = [GradientForm.of(leaf) for _, leaf in self._shared]
        sums = sums_over_ranks(self._comm, [leaf.grad for _, leaf in self._shared], forms)
        found = [(of, leaf.grad) for of, leaf in self._own.values() if leaf.grad is not None]
        shared = zip(self._shared, sums, strict=True)
        found += [(of, total) for (of, _), total in shared if total is not None]
        return [of for of, _ in found], [gradient for _, gradient in found]
