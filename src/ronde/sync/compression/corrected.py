"""Error feedback with momentum correction: the residual accumulates momentum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.comm.compressors.codec import Codec
from ronde.comm.compressors.sparse import TopK
from ronde.comm.process_group import Comm
from ronde.sync.compression.gathered import Gathered
from ronde.sync.compression.residuals import ResidualStore
from ronde.sync.leaf import Leaf

__all__ = ["Corrected", "Momentum", "momentum_of"]

Momentum = tuple[float, float, bool]
"""Momentum, dampening, and whether it is Nesterov's."""


def momentum_of(group: dict[str, Any]) -> Momentum:
    """Return the momentum settings of a `torch.optim.SGD` parameter group."""
    return float(group["momentum"]), float(group["dampening"]), bool(group["nesterov"])


class Corrected(Gathered):
    """Compress with error feedback and momentum correction, tensor by tensor.

    On rank r, with C the encoding and the momentum m of `torch.optim.SGD` (else 0):

        u_r = m u_r + g_r;  v_r = v_r + u_r     (Nesterov: u_r = m (u_r + g_r);  v_r = v_r + u_r + g_r)
        g = 1/W sum over ranks of C(v_r);  v_r = v_r - C(v_r)

    and for topk u_r = 0 where an element of v_r was sent (momentum factor masking). The optimizer then steps
    on g without momentum of its own: w = w - lr g. Momentum after the encoding would accumulate the losses of
    single messages, and a learning rate at which plain SGD trains would be too large. Weight decay remains
    with the optimizer, on whole parameters.

    Source: Lin et al., "Deep Gradient Compression", ICLR 2018, and Paddle's `dgc` operator (topk; local
    clipping is left out); BytePS's compressors with `momentum` and `ef` on the worker (onebit, twobit,
    randomk). Several backwards between two steps count as one: m is applied once.

    Args:
        momenta: function that returns the momentum settings of each leaf, called before each message.
    """

    def __init__(
        self,
        comm: Comm,
        leaves: Sequence[Leaf],
        held: ResidualStore,
        codecs: Callable[[], Sequence[Codec]],
        momenta: Callable[[], Sequence[Momentum]],
    ) -> None:
        super().__init__(comm, leaves, held, codecs)
        self._held = held
        self._momenta = momenta
        # Allocated for an optimizer with momentum: as large as the gradients.
        self._velocity: torch.Tensor | None = None
        self._computed: list[bool] = []

    def take(self, gradients: Sequence[torch.Tensor | None], fresh: bool) -> None:
        momenta = self._momenta()
        self._computed = [gradient is not None for gradient in gradients]
        if self._velocity is None and any(momentum for momentum, _, _ in momenta):
            self._velocity = self._held.flat("velocity", self.leaves)
        if self._velocity is None:
            super().take(gradients, fresh)
            return
        added: list[torch.Tensor | None] = []
        for gradient, velocity, momentum in zip(gradients, self.shaped(self._velocity), momenta, strict=True):
            added.append(None if gradient is None else _moved(velocity, gradient, momentum, fresh))
        super().take(added, fresh)

    def keep(self, codecs: Sequence[Codec], messages: Sequence[torch.Tensor]) -> None:
        super().keep(codecs, messages)
        if self._velocity is None:
            return
        for codec, message, size, velocity, computed in zip(
            codecs, messages, self.sizes, self._velocity.split(self.sizes), self._computed, strict=True
        ):
            if computed and isinstance(codec, TopK):  # a rank without this gradient has sent zeros
                velocity[codec.places(message, size)] = 0


def _moved(velocity: torch.Tensor, gradient: torch.Tensor, momentum: Momentum, fresh: bool) -> torch.Tensor:
    """Update u by a gradient, and return the summand of v.

    Args:
        fresh: whether a step came before; else the gradient is a later part of one step's.
    """
    factor, dampening, nesterov = momentum
    part = gradient if dampening == 0 else gradient * (1 - dampening)
    if not nesterov:
        if not fresh:
            velocity.add_(part)
            return part
        return velocity.mul_(factor).add_(part)
    scaled = part * factor
    if not fresh:
        velocity.add_(scaled)
        return scaled + gradient
    return velocity.mul_(factor).add_(scaled) + gradient
