"""Backend of two: an accelerator's library, and Gloo for tensors on the host.

Control messages (votes, objects, agreements) lie in host memory. By Gloo they wait for no kernel, and no
device waits for them. Ranks start collectives of both in one order, and those on the device are only
enqueued, so neither can wait for the other in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ronde.comm.backend import Backend, TorchBackend

__all__ = ["ByDevice"]


class ByDevice:
    """Backend that carries each tensor by the library of its device.

    Args:
        device: the backend of tensors on the accelerator.
        host: the backend of tensors in host memory. Neither of them blocks.
    """

    on_cuda = True
    blocks = False

    def __init__(self, device: TorchBackend, host: Backend) -> None:
        self.name = device.name
        self._device, self._host = device, host

    def _of(self, tensor: torch.Tensor) -> Backend:
        return self._host if tensor.device.type == "cpu" else self._device

    def averages(self, tensor: torch.Tensor) -> bool:
        """Tell whether `average` can be called with this tensor."""
        return tensor.device.type != "cpu" and self._device.averages

    def average(self, flat: torch.Tensor) -> Any:
        """Average `flat` [n] over ranks in place."""
        return self._device.average(flat)

    def all_reduce(self, flat: torch.Tensor) -> Any:
        return self._of(flat).all_reduce(flat)

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        return self._of(flat).all_gather(out, flat)

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        return self._of(flat).broadcast(flat, source)

    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> Any:
        first = next(part for each in parts for part in each)
        return self._of(first).share(rank, parts)

    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> Any:
        return self._of(out).reduce_scatter(rank, out, pieces)

    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> Any:
        return self._of(outs[0]).all_to_all(outs, pieces, longest)

    def send(self, flat: torch.Tensor, to: int) -> Any:
        return self._of(flat).send(flat, to)

    def receive(self, flat: torch.Tensor, source: int) -> Any:
        return self._of(flat).receive(flat, source)

    def set_timeout(self, timeout: timedelta) -> None:
        for each in (self._device, self._host):
            each.set_timeout(timeout)

    def close(self) -> None:
        for each in (self._device, self._host):
            each.close()
