"""Global tensors that share memory: a write into one of them is a write into all.

A view's rows are views of its origin's rows. Once the script has the memory of a whole value in its hands, or
changes it, what shares that memory is the whole value from then on, each a view of the one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ronde.errors import RondeError
from ronde.tensor.kinds import VIEWS, leaves_graph, may_copy
from ronde.tensor.memory import memory
from ronde.tensor.shard import Origin, Shard, set_whole, was_changed, whole_value

__all__ = [
    "hold_whole",
    "is_view",
    "lend",
    "notice",
    "open_to_write",
    "remember_view",
    "share",
    "whole_now",
]


def _lineage(value: Shard) -> Iterator[tuple[Shard, Origin]]:
    """What the tensor may be a view of, as far as the script still has it, the nearest first."""
    for origin in value._origins:
        base = origin.base()
        if base is not None:
            yield base, origin


def _line(value: Shard) -> Iterator[Shard]:
    """The tensor, and what it may be a view of."""
    yield value
    for base, _ in _lineage(value):
        yield base


def is_view(value: Shard) -> bool:
    """Whether the tensor may be a view of another that the script still has."""
    return any(True for _ in _lineage(value))


def _agree_on_origins(value: Shard) -> None:
    """Pass over what a rank's collector has taken: it comes at other moments on others, and what is gathered
    depends on it. What is gone on one rank no script can reach on any."""
    if value._rows is None or not value._origins:
        return
    there = [origin.base() is not None for origin in value._origins]
    counts = value._context.comm.votes(there)
    world_size = value._context.world_size
    value._origins = [
        origin for origin, count in zip(value._origins, counts, strict=True) if count == world_size
    ]
    known = {id(base) for base, _ in _lineage(value)}
    for base, _ in _lineage(value):
        base._origins = [origin for origin in base._origins if id(origin.base()) in known]


def _root(value: Shard) -> Shard:
    return list(_line(value))[-1]


def notice(value: Shard) -> None:
    """If the tensor, or what it is a view of, was changed, its rows are not what it is any more."""
    if value._full is None and not value._origins:
        return
    if any(member._rows is not None and was_changed(member) for member in _line(value)):
        hold_whole(value)


def _leaves_graph(value: Shard) -> bool:
    return bool(value._origins) and value._origins[-1].leaves_graph


def whole_now(value: Shard) -> torch.Tensor:
    """The whole value, with its graph, and with what was written to it by way of what shares its memory."""
    notice(value)
    return whole_value(value)


def hold_whole(value: Shard) -> torch.Tensor:
    """From now on the tensor, and what shares memory with it, is the whole value: it is about to change,
    or has been changed."""
    _agree_on_origins(value)
    return _hold_all(value, _root(value))


def _hold_all(value: Shard, root: Shard) -> torch.Tensor:
    """The same where ranks agree already on what it is a view of."""
    late = was_changed(root)
    whole_value(root)
    root._rows = None
    for reference in root._views:
        view = reference()
        if view is not None and view._rows is not None and is_view(view) and _join(view, late):
            view._rows = None
    return whole_value(value)


def open_to_write(value: Shard) -> None:
    """Make the tensor ready for a function that works in place.

    The tensor, and what shares memory with it, is the whole value from now on.

    Raises:
        RondeError: for `.data` of what has a graph: operations have kept rows for backward, past which it
            would be written.
    """
    _agree_on_origins(value)
    root = _root(value)
    if _leaves_graph(value) and root._rows is not None and root._rows.requires_grad:
        raise RondeError(
            "the script writes into .data of what a model returned, past the graph: what backward needs lies "
            "in rows on each rank; make a new tensor instead: out = out.masked_fill(mask, 0)"
        )
    _hold_all(value, root)


def _join(view: Shard, late: bool = False) -> bool:
    """Let a view's whole value lie in that of what it is a view of; False where it turns out to be a copy.

    With `late` that other one has been changed already, and a copy has not: it stays what it is. No rank is
    asked anything, since the view may be gone on another.
    """
    base, origin = next(_lineage(view))
    if view._joined:
        return True
    written = view._full if was_changed(view) else None
    assert base._full is not None
    with temporarily_clear_interpreter_stack():
        full = origin.view(base._full.data if origin.leaves_graph else base._full)
    if late and origin.may_copy and memory(full) != memory(base._full):
        view._origins = []
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
    _agree_on_origins(value)
    root = _root(value)
    if root._rows is not None and (not root._rows.requires_grad or _leaves_graph(value)):
        return _hold_all(value, root)
    line = list(_line(value))
    if value is root or any(_watched(member) for member in line[:-1]):
        return whole_now(value)
    whole_now(root)
    for view in reversed(line[:-1]):
        if view._rows is not None:
            _join(view)
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

    nearest = Origin(weakref.ref(base), same_view, may_copy(func), leaves_graph(func))
    # With those that are gone here: ranks vote on each of them, and one may be there on another rank.
    view._origins = [nearest, *(_through(nearest, origin) for origin in base._origins)]
    if len(view._origins) in _VOTES:
        _agree_on_origins(view)
    _keep(base, view)
    for ancestor, _ in _lineage(view):
        ancestor._views = [reference for reference in ancestor._views if reference() is not None]
        ancestor._views.append(weakref.ref(view))


# Of so many origins most will be gone, in a chain of views of views; ranks have equally many.
_VOTES = {2**power for power in range(4, 32)}


def _keep(base: Shard, view: Shard) -> None:
    """One of two views keeps what both are views of: else, once the script drops it, a write into one of them
    could not be brought to the other.

    Only one that has its memory and its graph anyway does: no copy, and nothing detached.
    """
    others = [other for reference in base._views if (other := reference()) is not None]
    sibling = next((other for other in others if next(_lineage(other))[0] is base), None)
    if sibling is None or base._rows is None:
        return
    for keeper in (view, sibling):
        _, origin = next(_lineage(keeper))
        rows = keeper._rows
        if rows is not None and not origin.may_copy and rows.requires_grad == base._rows.requires_grad:
            keeper._kept = base
            return


def _stand_in(value: Any) -> Any:
    """Of another tensor only its shape, type and device matter to a view."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty((), dtype=value.dtype, device=value.device).expand(value.shape)


def _through(nearest: Origin, farther: Origin) -> Origin:
    """A view of a view."""
    return Origin(
        farther.base,
        lambda full: nearest.view(farther.view(full)),
        nearest.may_copy or farther.may_copy,
        nearest.leaves_graph or farther.leaves_graph,
    )
