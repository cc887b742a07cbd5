"""Overflow of float16 sums over all rows, reproduced from the ranks' partial sums.

One device sums the gradient of a parameter that autocast casts to float16 in float16: beyond the largest
number it is infinite, and a `GradScaler` skips the step. Ranks sum their rows so, and these sums in float32.
Values that one device would have lost are made infinite here, once gradients are whole, so that the same
steps are skipped.

A gradient that is one such sum shows the overflow itself. A parameter that was cast several times (a critic,
of real and of false images) has the sum of several, of which each may overflow where the total does not:
these are kept until backward ends, and summed over ranks when they might be too large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.sync.gradient_shards import ScatteredGradients
from ronde.sync.leaf import Leaf

__all__ = ["Casts", "NarrowSums"]

Casts = Mapping[int, "tuple[Sequence[Any], bool]"]
"""Nodes by which a leaf's gradient comes in float16, by id of the leaf.

The flag tells whether part of the gradient comes by other nodes.
"""

# Half-way from the largest float16 to the next number: from here on numbers are rounded to infinity.
_TOO_LARGE = 65520.0


class NarrowSums:
    """Watches one backward; created before the backward begins.

    Args:
        leaves: leaves with gradients that it may add to.
        parts: store of gradient shards; None where each rank has whole gradients.
        casts: leaves that this backward will reach through casts to float16.
    """

    def __init__(
        self, leaves: Sequence[Leaf], comm: Comm, parts: ScatteredGradients | None, casts: Casts
    ) -> None:
        self._comm = comm
        self._parts = parts
        self._casts = casts
        # Only the summands of this backward were added in float16, and not the earlier gradient.
        self._before = {id(leaf): gradient.clone() for leaf, gradient in self._gradients(leaves)}
        self._handles: list[Any] = []
        self._terms = {leaf: self._watch(nodes) for leaf in leaves if (nodes := self._several(leaf))}

    def unwatch(self) -> None:
        """Remove the hooks from the graph, which may outlive this backward."""
        for handle in self._handles:
            handle.remove()

    @torch.no_grad()
    def lose(self, leaves: Sequence[Leaf]) -> None:
        """Make gradients infinite where one device would overflow. A collective.

        Gradients are averages times W here.
        """
        there = dict(self._gradients(leaves))
        sums = _over(_TOO_LARGE, ((leaf, self._added(leaf, gradient)) for leaf, gradient in there.items()))
        # Where no rank has a W-th of the bound, the sum over ranks is below the bound.
        terms = _over(
            _TOO_LARGE / self._comm.world_size,
            ((leaf, term) for leaf, found in self._terms.items() for term in found if term is not None),
        )
        votes = self._comm.votes([leaf in sums for leaf in leaves] + [leaf in terms for leaf in leaves])
        of_sums, of_terms = votes[: len(leaves)], votes[len(leaves) :]
        self._lose_sums([leaf for leaf, count in zip(leaves, of_sums, strict=True) if count], there)
        self._lose_terms([leaf for leaf, count in zip(leaves, of_terms, strict=True) if count], there)

    def _lose_sums(self, suspects: Sequence[Leaf], there: Mapping[Leaf, torch.Tensor]) -> None:
        """Mark overflow in gradients that are one sum each."""
        one = [self._came(leaf) for leaf in suspects]
        votes = self._comm.votes([each is not None for each in one] + [each is False for each in one])
        reached, otherwise = votes[: len(suspects)], votes[len(suspects) :]
        for leaf, some, other in zip(suspects, reached, otherwise, strict=True):
            gradient = there.get(leaf)
            if some and not other and gradient is not None:
                gradient.add_(_infinite_where_lost(self._added(leaf, gradient)))

    def _lose_terms(self, suspects: Sequence[Leaf], there: Mapping[Leaf, torch.Tensor]) -> None:
        """Mark overflow in gradients that are sums of several float16 sums."""
        if not suspects:
            return
        own = torch.tensor(
            [len(self._terms.get(leaf, ())) for leaf in suspects], device=self._comm.control_device
        )
        # A rank without rows in a call of the model has no term of it.
        counts = self._comm.all_gather(own).view(-1, len(suspects)).amax(0).tolist()
        for leaf, count in zip(suspects, counts, strict=True):
            lost = torch.zeros(leaf.shape, device=leaf.device)
            found = self._terms.get(leaf, [])
            for term in (*found, *[None] * (count - len(found))):
                total = torch.zeros_like(lost) if term is None else term.float().contiguous()
                lost += _infinite_where_lost(self._comm.all_reduce(total))
            gradient = there.get(leaf)
            if gradient is not None:
                gradient.add_(self._own(leaf, lost).to(gradient.device))

    def _came(self, leaf: Leaf) -> bool | None:
        """Return whether a gradient is one float16 sum; None if not reached."""
        found = self._casts.get(id(leaf.tensor))
        return None if found is None else len(found[0]) == 1 and not found[1]

    def _several(self, leaf: Leaf) -> Sequence[Any]:
        """Return the nodes of a gradient that is more than one float16 sum."""
        found = self._casts.get(id(leaf.tensor))
        return [] if found is None or self._came(leaf) or leaf.dtype is not torch.float32 else found[0]

    def _watch(self, nodes: Sequence[Any]) -> list[torch.Tensor | None]:
        """Record the gradient that arrives at each of these nodes in backward."""
        found: list[torch.Tensor | None] = [None] * len(nodes)

        def keep(place: int, gradients: Sequence[torch.Tensor | None]) -> None:
            found[place] = gradients[0]

        for place, node in enumerate(nodes):
            self._handles.append(node.register_prehook(functools.partial(keep, place)))
        return found

    def _own(self, leaf: Leaf, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's elements of a value, by the shards of the gradient."""
        tensor = leaf.tensor
        return whole if self._parts is None or tensor is None else self._parts.own(tensor, whole)

    def _added(self, leaf: Leaf, gradient: torch.Tensor) -> torch.Tensor:
        before = self._before.get(id(leaf))
        # A gradient that the script removed meanwhile, or that was sharded, began anew.
        return gradient if before is None or before.shape != gradient.shape else gradient - before

    def _gradients(self, leaves: Sequence[Leaf]) -> Iterator[tuple[Leaf, torch.Tensor]]:
        """Yield each float32 gradient on this rank, whole or its shard."""
        for leaf in leaves:
            tensor = leaf.tensor
            # No cast to float16 applies to parameters that are looked up sparsely.
            if tensor is None or leaf.dtype is not torch.float32 or leaf.sparse:
                continue
            part = None if self._parts is None else self._parts.part(tensor)
            gradient = leaf.gradient if part is None else part
            if gradient is not None:
                yield leaf, gradient.detach()


def _over(bound: float, candidates: Iterable[tuple[Leaf, torch.Tensor]]) -> set[Leaf]:
    """Return the leaves with a value of at least this magnitude."""
    asked = [(leaf, values) for leaf, values in candidates if values.numel()]
    largest = [values.abs().amax().float() for _, values in asked]
    if not largest:
        return set()
    devices = {each.device for each in largest}
    where = largest[0].device if len(devices) == 1 else torch.device("cpu")
    found = torch.stack([each.to(where) for each in largest]).ge(bound).tolist()
    return {leaf for (leaf, _), large in zip(asked, found, strict=True) if large}


def _infinite_where_lost(total: torch.Tensor) -> torch.Tensor:
    """Return infinities for elements that float16 cannot hold, else zeros."""
    return torch.where(total.abs() >= _TOO_LARGE, total.sign() * math.inf, 0.0)
