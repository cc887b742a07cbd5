"""`byteps.torch.parallel.DistributedDataParallel`, which averages gradients at the end of backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ronde.compat.byteps.operations import push_pull_async_inplace
from ronde.compat.horovod import basics
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.functions import broadcast_parameters
from ronde.compat.horovod.operations import synchronize
from ronde.patching.torch_internals import execution_engine

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(nn.Module):
    """A module wrapper that averages gradients over ranks.

    Args:
        device_ids: accepted without effect: a rank has one device.
        broadcast_buffers: whether rank 0's buffers are broadcast before each forward in training.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        broadcast_buffers: bool = True,
        compression: Any = Compression.none,
    ) -> None:
        super().__init__()
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True
        self._compression = compression
        self._handles: list[tuple[torch.Tensor, int, torch.Tensor, Any]] = []
        self._names = {id(each): name for name, each in module.named_parameters()}
        broadcast_parameters(module.state_dict(), root_rank=0)
        if basics.size() > 1:
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self._accumulated)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally inside the `with` block."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.broadcast_buffers and self.training and self.require_backward_grad_sync:
            buffers = {f"buffers.{name}": each for name, each in self.module.named_buffers()}
            broadcast_parameters(buffers, root_rank=0)
        return self.module(*args, **kwargs)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if not self.require_backward_grad_sync:
            return
        if not self._handles:
            engine: Any = execution_engine
            engine.queue_callback(self._complete)
        assert parameter.grad is not None
        sent, context = self._compression.compress(parameter.grad)
        handle = push_pull_async_inplace(sent, name=f"gradient.{self._names[id(parameter)]}")
        self._handles.append((parameter, handle, sent, context))

    def _complete(self) -> None:
        """Wait for all gradients at the end of backward."""
        handles, self._handles = self._handles, []
        for parameter, handle, sent, context in handles:
            synchronize(handle)
            assert parameter.grad is not None
            whole = self._compression.decompress(sent, context)
            if whole.data_ptr() != parameter.grad.data_ptr():
                parameter.grad.copy_(whole)
