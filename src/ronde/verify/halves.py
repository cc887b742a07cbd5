"""A twin of the plain run that computes every outermost forward in two halves.

A model that couples rows of a batch (batch norm) is not the same function of two halves, but it is of a batch
with its rows in another order, which changes the order of sums as well.
"""

from __future__ import annotations

import pickle
import random
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy
import torch

from ronde.patching.torch_internals import current_graph_task_id, pytree
from ronde.rowwise.compiled import is_compiled
from ronde.verify.draws import Draws, UnknownDraw
from ronde.verify.record import Writer

__all__ = ["InHalves"]

# Parts differ from the whole by rounding only; a larger difference shows that the rows are coupled.
_ROUNDING = 1e-3
# Under autocast a wide result may have been computed in a narrow type.
_ROUNDING_IN_NARROW_TYPES = 3e-2


def _rounding(leaf: torch.Tensor, narrow: bool) -> float:
    narrow = (
        narrow or leaf.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(leaf.device.type)
    )
    return _ROUNDING_IN_NARROW_TYPES if narrow else _ROUNDING


class InHalves:
    """Computes an outermost model call whole and, where equal up to rounding, in parts.

    The whole comes first, so that its side effects are there either way. Where the parts do not equal the
    whole up to rounding, the batch is computed with its first half moved to the end instead. Draws of the
    whole are repeated for its rows, from a module's second call on: the first shows that it draws. The whole
    is kept when none of this is possible.

    Args:
        narrow: whether models compute in half precision, by the plan.
    """

    def __init__(self, writer: Writer, *, narrow: bool = False) -> None:
        self._writer = writer
        self._narrow = narrow
        self._depth = 0
        self._drawing: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def install(self) -> None:
        recorder = self
        call = torch.nn.Module.__call__

        def call_in_parts(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # In backward a checkpoint recomputes, and must give its earlier result.
            in_backward = current_graph_task_id() != -1
            if recorder._depth or in_backward or not recorder._writer.active:
                return call(module, *args, **kwargs)
            recorder._depth += 1
            try:
                return recorder._call(call, module, args, kwargs)
            finally:
                recorder._depth -= 1

        torch.nn.Module.__call__ = call_in_parts

    def _call(self, call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        random_before, host_before = torch.get_rng_state(), _host_generators()
        buffers = [(each, each.clone()) for each in module.buffers()]
        leaves, layout = pytree.tree_flatten((args, kwargs))
        rows = _rows(leaves)
        draws = Draws(rows)
        with draws.noted() if module in self._drawing else nullcontext():
            whole = call(module, *args, **kwargs)
        # Compared by value: running statistics are written without a change of the tensors' versions.
        changed = [(buffer, before) for buffer, before in buffers if not torch.equal(buffer, before)]
        drew = not torch.equal(random_before, torch.get_rng_state())
        noisy = None
        known = draws.known and host_before == _host_generators()
        if rows >= 2 and known and (not drew or module in self._drawing):

            def part(indices: torch.Tensor) -> list[Any]:
                some = [each[indices] if _is_batch(each, rows) else each for each in leaves]
                some_args, some_kwargs = pytree.tree_unflatten(some, layout)
                with draws.again(indices) if drew else nullcontext():
                    return pytree.tree_flatten(call(module, *some_args, **some_kwargs))[0]

            after = [(buffer, buffer.clone()) for buffer, _ in changed]
            try:
                noisy = self._in_another_order(part, whole, rows, changed)
            except UnknownDraw:
                _put_back(after)
        if drew and not any(map(is_compiled, module.modules())):
            self._drawing.add(module)
        if torch.is_grad_enabled():
            self._writer.event("in_parts", done=noisy is not None)
        return whole if noisy is None else noisy

    def _in_another_order(
        self, part: Callable[[torch.Tensor], list[Any]], whole: Any, rows: int, changed: list[Any]
    ) -> Any:
        """Return `whole`, computed in parts or another row order; None if both fail."""
        pieces = torch.arange(rows).tensor_split(2)
        noisy = None if changed else _join(whole, [part(each) for each in pieces], self._narrow)
        if noisy is None:
            _put_back(changed)
            turned = part(torch.cat((*pieces[1:], pieces[0])))
            noisy = _turn_back(whole, turned, rows - len(pieces[0]), self._narrow)
        return noisy


def _host_generators() -> Any:
    """Return the states of generators with draws that ronde cannot repeat."""
    return random.getstate(), pickle.dumps(numpy.random.get_state())


def _put_back(changed: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Restore the buffers of before a call, so that repeating it updates them once.

    A failed call then leaves them unchanged. The tensors' versions stay: backward of an earlier call may have
    saved the buffers.
    """
    for buffer, before in changed:
        buffer.data.copy_(before)


def _rows(leaves: list[Any]) -> int:
    sizes = [each.shape[0] for each in leaves if isinstance(each, torch.Tensor) and each.dim() > 0]
    return sizes[0] if sizes and all(size == sizes[0] for size in sizes) else 0


def _is_batch(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows


def _join(whole: Any, parts: list[list[Any]], narrow: bool) -> Any:
    """Join the parts to one result; None if they differ from the whole."""
    leaves, layout = pytree.tree_flatten(whole)
    if any(len(part) != len(leaves) for part in parts):
        return None
    joined = [_rounded(leaf, each, narrow, join=True) for leaf, *each in zip(leaves, *parts, strict=True)]
    return None if any(each is _DIFFERENT for each in joined) else pytree.tree_unflatten(joined, layout)


def _turn_back(whole: Any, turned: list[Any], rows_behind: int, narrow: bool) -> Any:
    """Restore the order of the turned rows; None if the result differs from `whole`."""
    leaves, layout = pytree.tree_flatten(whole)
    if len(leaves) != len(turned):
        return None
    back: list[Any] = []
    for leaf, other in zip(leaves, turned, strict=True):
        if isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor) and leaf.dim() and other.dim():
            back.append(_rounded(leaf, [other[rows_behind:], other[:rows_behind]], narrow, join=True))
        else:
            back.append(_rounded(leaf, [other], narrow, join=False))
    return None if any(each is _DIFFERENT for each in back) else pytree.tree_unflatten(back, layout)


_DIFFERENT = object()


def _rounded(leaf: Any, parts: list[Any], narrow: bool, *, join: bool) -> Any:
    """Return `leaf` as computed in parts if it differs by rounding only, else `_DIFFERENT`.

    With `join` the parts are concatenated; without, the only part is returned.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf if all(leaf == part for part in parts) else _DIFFERENT
    if join and (leaf.dim() == 0 or any(part.shape[1:] != leaf.shape[1:] for part in parts)):
        return _DIFFERENT
    result = torch.cat(parts) if join else parts[0]
    if result.shape != leaf.shape:
        return _DIFFERENT
    with torch.no_grad():
        scale = float(leaf.abs().max()) if leaf.numel() else 0.0
        if (
            leaf.is_floating_point()
            and leaf.numel()
            and float((result - leaf).abs().max()) > _rounding(leaf, narrow) * scale
        ):
            return _DIFFERENT
    return result
