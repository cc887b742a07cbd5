"""Global tensors that share memory: a write into one of them is a write into all.

A view's rows are views of its base's rows. Once the script has the memory of a whole value in its hands, or
changes it, what shares that memory is the whole value from then on, each a view of the one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from ronde.errors import RondeError
from ronde.patching.torch_internals import temporarily_clear_interpreter_stack
from ronde.tensor.kinds import VIEWS, leaves_graph, may_copy
from ronde.tensor.memory import memory
from ronde.tensor.shard import Origin, Shard, set_whole, was_changed, whole_value

__all__ = ["hold_whole", "lend", "notice", "open_to_write", "remember_view", "share", "whole_now"]


def _line(value: Shard) -> Iterator[Shard]:
    """The tensor, and what it may be a view of, the nearest first, as far as it is there."""
    base: Shard | None = value
    while base is not None:
        yield base
        base = base._origin.base() if base._origin is not None else None


def _root(value: Shard) -> Shard:
    return list(_line(value))[-1]


def notice(value: Shard) -> None:
    """If the tensor, or what it is a view of, was changed, its rows are not what it is any more."""
    if value._full is None and value._origin is None:
        return
    if any(member._rows is not None and was_changed(member) for member in _line(value)):
        hold_whole(value)


def _leaves_graph(value: Shard) -> bool:
    return any(member._origin is not None and member._origin.leaves_graph for member in _line(value))


def whole_now(value: Shard) -> torch.Tensor:
    """The whole value, with its graph, and with what was written to it by way of what shares its memory."""
    notice(value)
    return whole_value(value)


def hold_whole(value: Shard) -> torch.Tensor:
    """From now on the tensor, and what shares memory with it, is the whole value: it is about to change,
    or has been changed."""
    root = _root(value)
    late = was_changed(root)
    whole_value(root)
    root._rows = None
    _join_views(root, late)
    return whole_value(value)


def _join_views(base: Shard, late: bool) -> None:
    for reference in base._views:
        view = reference()
        if view is not None and _join(view, base, late):
            view._rows = None
            _join_views(view, late)


def open_to_write(value: Shard) -> None:
    """Make the tensor ready for a function that works in place.

    The tensor, and what shares memory with it, is the whole value from now on.

    Raises:
        RondeError: for `.data` of what has a graph: operations have kept rows for backward, past which it
            would be written.
    """
    root = _root(value)
    if _leaves_graph(value) and root._rows is not None and root._rows.requires_grad:
        raise RondeError(
            "the script writes into .data of what a model returned, past the graph: what backward needs lies "
            "in rows on each rank; make a new tensor instead: out = out.masked_fill(mask, 0)"
        )
    hold_whole(value)


def _join(view: Shard, base: Shard, late: bool = False) -> bool:
    """Let a view's whole value lie in that of its base; False where it turns out to be a copy.

    With `late` that other one has been changed already, and a copy has not: it stays what it is. No rank is
    asked anything, since the view may be gone on another.
    """
    if view._joined:
        return True
    origin = view._origin
    if origin is None:
        return False
    written = view._full if was_changed(view) else None
    assert base._full is not None
    with temporarily_clear_interpreter_stack():
        full = origin.view(base._full.data if origin.leaves_graph else base._full)
    if late and origin.may_copy and memory(full) != memory(base._full):
        view._origin = None
        return False
    set_whole(view, full)
    if written is not None:
        with torch.set_grad_enabled(written.requires_grad):
            full.copy_(written)
    view._joined = True
    return True


def share(value: Shard) -> torch.Tensor:
    """The whole value, in memory in which a write changes all that shares it.

    It is about to be in the script's hands as a plain tensor. Without a gradient all that shares it is this
    memory from now on, and where no version tells of writes (`.data`). With a gradient only the views on the
    way are: what a model returned is looked at more often than it is written to.
    """
    line = list(_line(value))
    root = line[-1]
    if root._rows is not None and (not root._rows.requires_grad or _leaves_graph(value)):
        return hold_whole(value)
    if value is root or any(_watched(member) for member in line[:-1]):
        return whole_now(value)
    whole_now(root)
    for view, base in reversed(list(pairwise(line))):
        if view._rows is not None:
            _join(view, base)
            view._rows = None
    return whole_value(value)


def _watched(value: Shard) -> bool:
    """The script waits for the gradient of the rows, so every gradient has to come through them."""
    rows = value._rows
    return rows is not None and rows.requires_grad and bool(rows._backward_hooks or rows.retains_grad)


def lend(value: Shard) -> torch.Tensor:
    """The whole value, whose memory is about to be handed out: what is written there is not seen to be.

    So from now on the tensor is that memory, if it is a batch. What a model returned with a gradient stays
    in rows: it is looked at as an array in every loop, and written to in none.
    """
    root = _root(value)
    full = whole_now(value)
    return full if root._rows is None or root._rows.requires_grad else hold_whole(value)


def remember_view(func: Any, base: Shard, others: Sequence[Any], named: dict[str, Any], view: Shard) -> None:
    """Where a rule's result shares memory with its argument, a change of one must become a change of both.

    Whether it does share is known when the same function is applied to the whole value: by the strides
    of their shards ranks could come to different answers.
    """
    if getattr(func, "__name__", "") not in VIEWS:
        return
    rows, base_rows = view._rows, base._rows
    assert rows is not None
    assert base_rows is not None
    if rows.dtype != base_rows.dtype or rows.device != base_rows.device:
        return  # surely a copy
    others = [_stand_in(value) for value in others]
    named = {name: _stand_in(value) for name, value in named.items()}
    graph = torch.is_grad_enabled()

    def same_view(full: torch.Tensor) -> torch.Tensor:
        if leaves_graph(func):
            return full.detach()  # as it is given its memory past the graph already
        with torch.set_grad_enabled(graph):
            return func(full, *others, **named)

    if rows.requires_grad == base_rows.requires_grad:
        origin = Origin(lambda: base, same_view, may_copy(func), leaves_graph(func))
    else:
        base, origin = _past_the_graph(base, same_view, func)
    view._origin = origin
    base._views = [reference for reference in base._views if reference() is not None]
    base._views.append(weakref.ref(view))


def _past_the_graph(base: Shard, same_view: Callable[[torch.Tensor], torch.Tensor], func: Any) -> Any:
    """Of what is detached, held by weak reference, as it would hold a graph: the farthest that it lies in."""
    steps = [same_view]
    while (origin := base._origin) is not None and not origin.may_copy:
        nearer = origin.base()
        if nearer is None:
            break
        steps.append(origin.view)
        base = nearer

    def view(full: torch.Tensor) -> torch.Tensor:
        for step in reversed(steps):
            full = step(full)
        return full

    return base, Origin(weakref.ref(base), view, may_copy(func), leaves_graph(func))


def _stand_in(value: Any) -> Any:
    """Of another tensor only its shape, type and device matter to a view."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty((), dtype=value.dtype, device=value.device).expand(value.shape)
