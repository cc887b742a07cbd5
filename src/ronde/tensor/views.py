"""Global tensors that share memory: a write into one of them is a write into all.

A view's rows are views of its origin's rows. Once the script has the memory of a whole value in its hands, or
changes it, what shares that memory is the whole value from then on, each a view of the one.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ronde.tensor.kinds import VIEWS, leaves_graph, may_copy
from ronde.tensor.memory import memory
from ronde.tensor.whole_value import (
    note_changes,
    past_graph,
    set_whole,
    was_changed,
    was_changed_in_graph,
    was_changed_past_graph,
    whole_value,
)

if TYPE_CHECKING:
    from ronde.tensor.context import Context
    from ronde.tensor.global_tensor import GlobalTensor

__all__ = [
    "Origin",
    "hold_whole",
    "is_view",
    "lend",
    "notice",
    "notice_writes_past_graph",
    "open_to_write",
    "remember_view",
    "share",
    "whole_now",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """A tensor that another may be a view of, and how the other's whole value is made from its own."""

    base: weakref.ref[GlobalTensor]
    view: Callable[[torch.Tensor], torch.Tensor]
    # It is a matter of strides whether that is a view or a copy.
    may_copy: bool
    # It is `.data`, which shares memory but neither the graph nor the version.
    leaves_graph: bool


def _lineage(value: GlobalTensor) -> Iterator[tuple[GlobalTensor, Origin]]:
    """What the tensor may be a view of, as far as the script still has it, the nearest first."""
    for origin in value._origins:
        base = origin.base()
        if base is not None:
            yield base, origin


def _line(value: GlobalTensor) -> Iterator[GlobalTensor]:
    """The tensor, and what it may be a view of."""
    yield value
    for base, _ in _lineage(value):
        yield base


def is_view(value: GlobalTensor) -> bool:
    """Whether the tensor may be a view of another that the script still has."""
    return any(True for _ in _lineage(value))


def _agree_on_origins(value: GlobalTensor) -> None:
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


def _root(value: GlobalTensor) -> GlobalTensor:
    return list(_line(value))[-1]


def notice(value: GlobalTensor) -> None:
    """If the tensor, or what it is a view of, was changed, its rows are not what it is any more."""
    if value._full is None and not value._origins:
        return
    changed = [member for member in _line(value) if member._rows is not None and was_changed(member)]
    if not changed:
        return
    root = _root(value)
    past = _is_only_past_graph(root) and all(member is root or _leaves_graph(member) for member in changed)
    if past and not _may_be_copy(value):
        _bring_to_rows(root)
    else:
        hold_whole(value)


def notice_writes_past_graph(context: Context) -> None:
    """Backward is about to begin, and uses what operations have kept; it is no matter of other ranks.

    Or a model is called again: by then a script has written what it wants to write.
    """
    for value in list(context.past_graph.values()):
        if _is_only_past_graph(value):
            _bring_to_rows(value)
    context.until_backward.clear()


def _is_only_past_graph(value: GlobalTensor) -> bool:
    """Whether the tensor is in rows still, and was written past the graph and in no other way."""
    written = value._rows is not None and was_changed_past_graph(value)
    return written and not was_changed_in_graph(value)


def _leaves_graph(value: GlobalTensor) -> bool:
    return bool(value._origins) and value._origins[-1].leaves_graph


def _may_be_copy(value: GlobalTensor) -> bool:
    return bool(value._origins) and value._origins[-1].may_copy


def whole_now(value: GlobalTensor) -> torch.Tensor:
    """The whole value, with its graph, and with what was written to it by way of what shares its memory."""
    notice(value)
    return whole_value(value)


def hold_whole(value: GlobalTensor) -> torch.Tensor:
    """From now on the tensor, and what shares memory with it, is the whole value: it is about to change,
    or has been changed."""
    _agree_on_origins(value)
    return _hold_all(value, _root(value))


def _hold_all(value: GlobalTensor, root: GlobalTensor) -> torch.Tensor:
    """The same where ranks agree already on what it is a view of."""
    late = was_changed(root)
    whole_value(root)
    if any(was_changed_past_graph(member) for member in _line(value)):
        _write_rows(root._rows, root)
    root._rows = None
    for reference in root._views:
        view = reference()
        if view is not None and view._rows is not None and is_view(view) and _join(view, late):
            view._rows = None
    return whole_value(value)


def _write_rows(rows: torch.Tensor | None, value: GlobalTensor) -> None:
    """What was written to the whole value past the graph is what operations have kept for backward."""
    if rows is not None and value._full is not None:
        with temporarily_clear_interpreter_stack():  # they are values from outside of torch.func's transforms
            written = rows.data if rows.requires_grad else rows
            written.copy_(value._layout.take(value._full.data, value._context.rank))


def _goes_past_graph(value: GlobalTensor, root: GlobalTensor) -> bool:
    """Whether a write into the tensor is one into what operations may have kept of `root` for backward."""
    rows, kept = value._rows, root._rows
    return rows is not None and kept is not None and kept.requires_grad and not rows.requires_grad


def open_to_write(value: GlobalTensor) -> Callable[[], None]:
    """Make the tensor ready for a function that works in place; what this gives is to be called afterwards.

    The tensor, and what shares memory with it, is the whole value from now on. But a write past the graph, as
    in `output.data.masked_fill_(mask, 0)`, changes what operations have kept for backward. That is rows: they
    are written too, and unless strides decide what shares memory they stay what the tensor is.
    """
    _agree_on_origins(value)
    root = _root(value)
    if not _goes_past_graph(value, root):
        _hold_all(value, root)
        return lambda: None
    if _may_be_copy(value):
        rows = root._rows
        _hold_all(value, root)
        return lambda: _write_rows(rows, root)
    notice(value)
    whole_now(root)
    for view in reversed(list(_line(value))[:-1]):
        _join(view)
    return lambda: _bring_to_rows(root)


def _bring_to_rows(root: GlobalTensor) -> None:
    """The whole value was written past the graph: so are its rows, and what was gathered of views of it."""
    _write_rows(root._rows, root)
    note_changes(root)
    for reference in root._views:
        view = reference()
        if view is None or view._rows is None or view._full is None or not is_view(view):
            continue
        if not view._joined:
            _, origin = list(_lineage(view))[-1]
            with temporarily_clear_interpreter_stack():
                view._full.data.copy_(origin.view(past_graph(root)))
        note_changes(view)


def _join(view: GlobalTensor, late: bool = False) -> bool:
    """Let a view's whole value lie in that of what it is a view of; False where it turns out to be a copy.

    With `late` that other one has been changed already, and a copy has not: it stays what it is. No rank is
    asked anything, since the view may be gone on another.
    """
    base, origin = next(_lineage(view))
    if origin.leaves_graph:  # somewhere on the way to the farthest, which counts such writes
        base, origin = list(_lineage(view))[-1]
    if view._joined:
        return True
    written = view._full if was_changed(view) else None
    assert base._full is not None
    with temporarily_clear_interpreter_stack():
        full = origin.view(past_graph(base) if origin.leaves_graph else base._full)
    if late and origin.may_copy and memory(full) != memory(base._full):
        view._origins = []
        return False
    set_whole(view, full)
    if written is not None:
        with torch.set_grad_enabled(written.requires_grad):
            full.copy_(written)
    view._joined = True
    return True


def share(value: GlobalTensor) -> torch.Tensor:
    """The whole value, in memory in which a write changes all that shares it.

    It is about to be in the script's hands as a plain tensor. Without a gradient all that shares it is this
    memory from now on. With one only the views on the way are: versions tell of writes, and what a model
    returned is looked at more often than it is written to.
    """
    _agree_on_origins(value)
    root = _root(value)
    if root._rows is not None and not root._rows.requires_grad:
        return _hold_all(value, root)
    line = list(_line(value))
    if value is root or any(_watched(member) for member in line[:-1]):
        return whole_now(value)
    whole_now(root)
    for view in reversed(line[:-1]):
        if view._rows is not None:
            _join(view)
            if not _leaves_graph(view):
                view._rows = None
    return whole_value(value)


def _watched(value: GlobalTensor) -> bool:
    """The script waits for the gradient of the rows, so every gradient has to come through them."""
    rows = value._rows
    return rows is not None and rows.requires_grad and bool(rows._backward_hooks or rows.retains_grad)


def lend(value: GlobalTensor) -> torch.Tensor:
    """The whole value, whose memory is about to be handed out: what is written there is not seen to be.

    So from now on the tensor is that memory, if it is a batch. What a model returned with a gradient stays
    in rows: it is looked at as an array in every loop, and written to in none.
    """
    root = _root(value)
    full = whole_now(value)
    return full if root._rows is None or root._rows.requires_grad else hold_whole(value)


def remember_view(
    func: Any, base: GlobalTensor, others: Sequence[Any], named: dict[str, Any], view: GlobalTensor
) -> None:
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


def _keep(base: GlobalTensor, view: GlobalTensor) -> None:
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
