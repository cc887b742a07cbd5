"""Leaves that stand for a model's in one step, so that its gradients can be looked at before they count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.sync.sums import Form, sums_over_ranks

__all__ = ["HeldLeaves", "SeparateLeaves"]


class HeldLeaves(Protocol):
    """What the ranks of a pipeline hold of a model, as far as its call asks."""

    def leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """This rank's elements of a parameter, perhaps none; None for a parameter that all ranks have."""
        ...

    def stand_in(self, parameter: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
        """Stands for a parameter in modules of this rank's stage; None for a parameter of another stage.

        Args:
            leaf: this rank's elements.
        """
        ...

    def run(self, unit: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module of this rank's stage; its output on every rank that runs it."""
        ...

    def watched(self) -> Any:
        """Inside, whoever uses a parameter of another stage meets an exception."""
        ...


class SeparateLeaves:
    """As `HeldLeaves`, with other leaves of the same elements.

    Args:
        held: what the rank holds.
        comm: the ranks of the pipeline.
        on_new: hears of each new leaf, and of that for which it stands.
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
        """By id what stands for those parameters that every rank has."""
        shared = [each for each in parameters if each.requires_grad and self._held.leaf(each) is None]
        self._shared = [self._other(each) for each in shared]
        return {id(each): leaf for each, leaf in self._shared}

    def _other(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        other = leaf.detach().requires_grad_()
        self._on_new(other, leaf)
        return leaf, other

    def gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What has gradients, and these; those of what every rank has are summed. All ranks come here."""
        forms = [Form.of(leaf) for _, leaf in self._shared]
        sums = sums_over_ranks(self._comm, [leaf.grad for _, leaf in self._shared], forms)
        found = [(of, leaf.grad) for of, leaf in self._own.values() if leaf.grad is not None]
        shared = zip(self._shared, sums, strict=True)
        found += [(of, total) for (of, _), total in shared if total is not None]
        return [of for of, _ in found], [gradient for _, gradient in found]
