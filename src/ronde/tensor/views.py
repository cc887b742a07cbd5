"""Aliasing of global tensors: a write into one changes all that share its memory.

A view's rows are views of its base's rows. Once the script holds the memory of a whole value, or changes it,
all tensors that share that memory hold the whole value from then on, each a view of the same memory.
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

__all__ = ["hold_whole", "lend", "line", "notice", "open_to_write", "remember_view", "share", "whole_now"]


def line(value: Shard) -> Iterator[Shard]:
    """Yield the tensor and its possible bases that still exist, the nearest first."""
    base: Shard | None = value
    while base is not None:
        yield base
        base = base._origin.base() if base._origin is not None else None


def _root(value: Shard) -> Shard:
    return list(line(value))[-1]


def notice(value: Shard) -> None:
    """Discard the rows if the tensor or one of its bases was changed."""
    if value._full is None and value._origin is None:
        return
    if any(member._rows is not None and was_changed(member) for member in line(value)):
        hold_whole(value)


def _leaves_graph(value: Shard) -> bool:
    return any(member._origin is not None and member._origin.leaves_graph for member in line(value))


def whole_now(value: Shard) -> torch.Tensor:
    """Return the whole value with its graph, including writes through its aliases."""
    notice(value)
    return whole_value(value)


def hold_whole(value: Shard) -> torch.Tensor:
    """Switch the tensor and its aliases from rows to the whole value.

    Necessary when it is about to change, or has been changed.
    """
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
    """Prepare the tensor for an in-place function.

    The tensor and its aliases hold the whole value from now on.

    Raises:
        RondeError: `.data` of a tensor with a graph would be written, past the rows that operations have
            saved for backward.
    """
    root = _root(value)
    if _leaves_graph(value) and root._rows is not None and root._rows.requires_grad:
        raise RondeError(
            "the script writes into .data of a model's output, which autograd does not see, but backward "
            "needs the rows on each rank unchanged; make a new tensor instead: out = out.masked_fill(mask, "
            "0) [R373]"
        )
    hold_whole(value)


def _join(view: Shard, base: Shard, late: bool = False) -> bool:
    """Place a view's whole value in its base's; return False for a copy.

    Args:
        late: whether the base has been changed already; a copy is not changed then.

    This must not communicate, because the view may be gone on another rank.
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
    """Return the whole value in memory where a write changes all aliases.

    The script is about to hold it as a plain tensor. Without a gradient, or where no version counter records
    writes (`.data`), all aliases hold this memory from now on. With a gradient only the views on the way do:
    scripts look at a model's output more often than they write to it.
    """
    members = list(line(value))
    root = members[-1]
    if root._rows is not None and (not root._rows.requires_grad or _leaves_graph(value)):
        return hold_whole(value)
    if value is root or any(_watched(member) for member in members[:-1]):
        return whole_now(value)
    whole_now(root)
    for view, base in reversed(list(pairwise(members))):
        if view._rows is not None:
            _join(view, base)
            view._rows = None
    return whole_value(value)


def _watched(value: Shard) -> bool:
    """Return whether a hook or `retain_grad` is set on the rows.

    Every gradient then has to pass through them.
    """
    rows = value._rows
    return rows is not None and rows.requires_grad and bool(rows._backward_hooks or rows.retains_grad)


def lend(value: Shard) -> torch.Tensor:
    """Return the whole value, in memory that the caller may write to unnoticed.

    From now on a batch uses that memory. A model's output with a gradient keeps its rows: scripts often read
    it as an array, but do not write to it.
    """
    root = _root(value)
    full = whole_now(value)
    return full if root._rows is None or root._rows.requires_grad else hold_whole(value)


def remember_view(func: Any, base: Shard, others: Sequence[Any], named: dict[str, Any], view: Shard) -> None:
    """Record that a rule's result may be a view of its argument.

    Whether it is one is known when the same function is applied to the whole value: by the strides of their
    shards ranks could come to different answers.
    """
    if getattr(func, "__name__", "") not in VIEWS:
        return
    rows, base_rows = view._rows, base._rows
    assert rows is not None
    assert base_rows is not None
    if rows.dtype != base_rows.dtype or rows.device != base_rows.device:
        return  # certainly a copy
    others = [_stand_in(value) for value in others]
    named = {name: _stand_in(value) for name, value in named.items()}
    graph = torch.is_grad_enabled()

    def same_view(full: torch.Tensor) -> torch.Tensor:
        if leaves_graph(func):
            return full.detach()  # the argument is already a `.data` of the base
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
    """Return the farthest base of a detached view, and its origin by weak reference.

    A strong reference would keep a graph alive.
    """
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
    """Replace a tensor by an empty one of equal shape, dtype and device."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty((), dtype=value.dtype, device=value.device).expand(value.shape)
