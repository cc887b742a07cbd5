"""Measures the noise floor: plain torch against itself, every outermost forward computed in two halves."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from ronde.verify.record import Writer

__all__ = ["HalvesRecorder"]

# Two halves differ from the whole by rounding only; what differs by more couples the rows of a batch.
_ROUNDING = 1e-3


class HalvesRecorder:
    """Computes an outermost model call whole and, where that is the same function, again in halves.

    The whole comes first, so that its side effects are there either way. Halves are not possible, and the
    whole is kept, when the call draws random numbers, changes a buffer (batch norm), or gives rows that
    differ by more than rounding (attention over the batch, a loss inside the model).
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._depth = 0

    def install(self) -> None:
        recorder = self
        call = torch.nn.Module.__call__

        def halved_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if recorder._depth or not recorder._writer.active:
                return call(module, *args, **kwargs)
            recorder._depth += 1
            try:
                return recorder._call(call, module, args, kwargs)
            finally:
                recorder._depth -= 1

        torch.nn.Module.__call__ = halved_call

    def _call(self, call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        random_before = torch.get_rng_state()
        buffers = [(each, each._version) for each in module.buffers()]
        whole = call(module, *args, **kwargs)
        leaves, layout = pytree.tree_flatten((args, kwargs))
        rows = _rows(leaves)
        changed = any(each._version != version for each, version in buffers)
        if rows < 2 or changed or not torch.equal(random_before, torch.get_rng_state()):
            if torch.is_grad_enabled():
                self._writer.event("halved", done=False)
            return whole
        half = rows // 2
        results = []
        for start, stop in ((0, half), (half, rows)):
            part = [each[start:stop] if _is_batch(each, rows) else each for each in leaves]
            some_args, some_kwargs = pytree.tree_unflatten(part, layout)
            results.append(pytree.tree_flatten(call(module, *some_args, **some_kwargs)))
        joined = _join(whole, results[0][0], results[1][0])
        if torch.is_grad_enabled():
            self._writer.event("halved", done=joined is not None)
        return whole if joined is None else joined


def _rows(leaves: list[Any]) -> int:
    sizes = [each.shape[0] for each in leaves if isinstance(each, torch.Tensor) and each.dim() > 0]
    return sizes[0] if sizes and all(size == sizes[0] for size in sizes) else 0


def _is_batch(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows


def _join(whole: Any, first: list[Any], second: list[Any]) -> Any:
    """The halves as one result, or None when they are not the whole's two halves."""
    leaves, layout = pytree.tree_flatten(whole)
    if not len(leaves) == len(first) == len(second):
        return None
    joined: list[Any] = []
    for leaf, upper, lower in zip(leaves, first, second, strict=True):
        if not isinstance(leaf, torch.Tensor):
            if leaf != upper or leaf != lower:
                return None
            joined.append(leaf)
            continue
        if leaf.dim() == 0 or upper.shape[1:] != leaf.shape[1:] or lower.shape[1:] != leaf.shape[1:]:
            return None
        both = torch.cat((upper, lower))
        if both.shape != leaf.shape:
            return None
        with torch.no_grad():
            scale = float(leaf.abs().max()) if leaf.numel() else 0.0
            if leaf.is_floating_point() and float((both - leaf).abs().max()) > _ROUNDING * scale:
                return None
        joined.append(both)
    return pytree.tree_unflatten(joined, layout)
