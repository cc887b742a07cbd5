"""Bucket of gradients that are encoded, exchanged and decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ronde.errors import UsageError
from ronde.sync.bucket import Bucket
from ronde.sync.bucket_memory import GradientMemory
from ronde.sync.compression.exchange import GradientExchange
from ronde.sync.leaf import Leaf, give_gradient, gradient_of, gradients_of
from ronde.trace.resident import Census

__all__ = ["CompressedBucket"]


class CompressedBucket(Bucket):
    """Exchanges the part of each gradient that this backward adds.

    The accumulated gradient from earlier backwards stays as it is.

    Args:
        exchange: function that returns the exchange for a new backward, and whether an optimizer has stepped
            since the last one.
    """

    waits = True
    encodes = True

    def __init__(
        self,
        leaves: Sequence[Leaf],
        memory: GradientMemory,
        exchange: Callable[[], tuple[GradientExchange, bool]],
    ) -> None:
        super().__init__(leaves, None, memory)
        self._choose = exchange
        self._exchange: GradientExchange | None = None
        self._out: torch.Tensor | None = None
        # Accumulated gradients from before this backward, by place.
        self._kept: dict[int, torch.Tensor] = {}
        self._counts: list[int] = []

    @torch.no_grad()
    def begin(self, *, graph: bool = False) -> None:
        found = gradients_of(self.leaves)
        self._kept = {
            place: gradient.detach().clone() for place, gradient in enumerate(found) if gradient is not None
        }

    @property
    def early(self) -> bool:
        """True once every gradient is computed.

        A copy is sent, so a later change of the gradient does no harm.
        """
        return self.complete

    @torch.no_grad()
    def launch(self) -> None:
        """Encode and send the gradients of this backward.

        Raises:
            UsageError: a gradient was computed again after it had been sent.
        """
        if self.launched:
            raise UsageError(
                "a gradient was computed a second time in one backward, after it had been encoded "
                "and sent, as checkpoints with use_reentrant=True do; use use_reentrant=False, or "
                "compressor=none [R292]"
            )
        self.launched = True
        exchange, fresh = self._choose()
        self._exchange = exchange
        exchange.take([self._added(place) for place in range(len(self.leaves))], fresh)
        flags = torch.tensor([place in self._ready for place in range(len(self.leaves))])
        exchange.start(flags.view(torch.uint8).to(self.leaves[0].device))

    def _added(self, place: int) -> torch.Tensor | None:
        """Return the part of a gradient that this backward added, or None."""
        gradient = gradient_of(self.leaves[place].tensor)
        if gradient is None or place not in self._ready:
            return None
        before = self._kept.get(place)
        return gradient.detach() if before is None else gradient.detach() - before

    def advance(self) -> bool:
        return True

    @torch.no_grad()
    def reduce(self) -> None:
        assert self._exchange is not None
        self._exchange.reduce()

    @torch.no_grad()
    def collect(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        if self._out is None:
            self._out = torch.empty_like(exchange.values)
        self._counts = exchange.collect(self._out)
        exchange.restore()

    def settle(self) -> None:
        """Return at once: other ranks do not use memory of this rank."""

    @torch.no_grad()
    def deliver(self) -> list[torch.Tensor]:
        """Put the exchanged averages where the gradients are."""
        assert self._exchange is not None
        assert self._out is not None
        for place, view in enumerate(self._exchange.shaped(self._out)):
            tensor = self.leaves[place].tensor
            if tensor is None or not self._counts[place]:
                continue
            gradient, before = gradient_of(tensor), self._kept.get(place)
            if gradient is None:
                give_gradient(tensor, view.clone())
            elif before is None:
                gradient.detach().copy_(view)
            else:
                torch.add(before, view, out=gradient.detach())
        self.reset()
        return []

    def take_over(self, known: set[int]) -> None:
        """Ignore the call: no gradient lies in a bucket."""

    def tell(self, census: Census, *, on_the_way: bool) -> None:
        """Count the residuals and the received averages."""
        for flat in (None if self._exchange is None else self._exchange.values, self._out):
            if flat is not None:
                census.count("buckets", flat)

    def reset(self) -> None:
        super().reset()
        self._kept.clear()
