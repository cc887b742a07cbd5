"""Analysis of a script's `autograd.Function`, each direction as one operation.

The backward of torch's own operations follows from their forward. A script's function must be tried: backward
of the parts, on random gradients, must give the same rows as backward of the whole, and the sum for arguments
without rows. It must also be linear, because gradients on shards are larger by the number of ranks.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointFunction

from ronde.patching.torch_internals import DisableTorchFunction, StopRecomputationError
from ronde.rowwise.labels import Label, Mixed, Order, along
from ronde.rowwise.lookup import look_up
from ronde.rowwise.normalize import normalize
from ronde.rowwise.operation import replaced, tensors
from ronde.rowwise.parts import alike
from ronde.rowwise.repeat import matched
from ronde.rowwise.sequence import follow_function
from ronde.rowwise.verdict import MixesRows, meet
from ronde.rowwise.watch import Away, CallWatch

__all__ = ["applied_by", "ends_recomputation", "functions_tried"]

MIXING = "its backward (a torch.autograd.Function) mixes rows, or is not linear in the gradient [R340]"
# A power of two, which is exact, and large, to reveal thresholds.
_FACTOR = 2.0**10


def ends_recomputation(error: Exception) -> bool:
    """Return whether an exception is torch's early stop of a checkpoint's recomputation."""
    return isinstance(error, StopRecomputationError)


@contextmanager
def functions_tried(watch: CallWatch) -> Iterator[None]:
    """Analyse the script's functions as they are applied inside the `with` block."""

    def apply(plain: Callable[..., Any], kind: Any, args: Any, kwargs: Any) -> Any:
        result = carried_out(plain, kind, args, kwargs)
        with DisableTorchFunction():
            follow_function(watch.marks, args, result)
        return result

    def carried_out(plain: Callable[..., Any], kind: Any, args: Any, kwargs: Any) -> Any:
        run = functools.partial(plain, **kwargs)
        looks_up = watch.ranks.looks_up(kind)
        if watch.away:
            if looks_up or watch.ranks.normalizes(kind):
                raise MixesRows(meet(kind.__name__))
            return run(*args)
        if looks_up:
            watch.sequence.steps.append((kind.__name__, ()))
            return look_up(watch, kind.__name__, args, lambda: run(*args))
        if watch.ranks.normalizes(kind):
            return _normalized(watch, kind, args, run)
        with DisableTorchFunction():
            rows = [each for each in tensors(args) if watch.rows_of(each) is not None]
        return _tried(watch, kind, args, run) if rows and _is_users(kind) else run(*args)

    with applied_by(apply):
        yield


@contextmanager
def applied_by(how: Callable[..., Any]) -> Iterator[None]:
    """Route `autograd.Function.apply` through `how` inside the `with` block.

    `how` gets the original `apply`, the function's class, and its arguments.
    """
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        # Bound by the descriptor protocol: a classmethod up to torch 2.13, a C function from 2.14 on.
        return how(plain.__get__(None, kind), kind, args, kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[assignment]


def _is_users(kind: Any) -> bool:
    """Return whether a function is the script's, also via `torch.library.custom_op`.

    Torch wraps such an operator in a function of its own.
    """
    home = kind.__module__
    return home == "torch._library.autograd" or home.split(".")[0] not in ("torch", "ronde")


def _normalized(watch: CallWatch, kind: Any, args: Any, run: Callable[..., Any]) -> Any:
    watch.sequence.steps.append((kind.__name__, ()))
    with DisableTorchFunction():
        value, *others = tensors(args)
        running = [each for each in others if not each.requires_grad and watch.undo.name_of(each) is not None]
    # With running statistics: sharded parameters are gathered by their own functions.
    return normalize(watch, value, lambda: run(*args), keeps=bool(running))


def _tried(watch: CallWatch, kind: Any, args: Any, run: Callable[..., Any]) -> Any:
    name = kind.__name__
    with DisableTorchFunction():
        labels = [mark for each in tensors(args) if (mark := watch.rows_of(each)) is not None]
    if not all(type(label) is Label for label in labels):
        raise MixesRows(meet(name))
    with watch.looking_away(Away.NOTED):
        result = run(*args)
    results = tensors(result)
    given = {id(each) for each in tensors(args)}
    if any(id(each) in given for each in results):
        raise MixesRows(f"it changes its argument in place ({name}) [R343]")
    with watch.looking_away(), _generators_kept(watch), DisableTorchFunction():
        watch.made(results)
        orders = _orders(watch, args)
        axes = _forward_axes(watch, args, run, orders)
        for each, found in zip(results, axes, strict=True):
            fits = found is not None and each.shape[found[0]] == len(found[1])
            watch.put(each, along(found[1], found[0], each.shape) if found and fits else Mixed(name))
        if _has_backward(args, results):
            with saved_tensors_hooks(torch.Tensor.detach, _itself):  # a checkpoint counts saved tensors
                _compare_backward(watch, args, run, axes)
    return result


def _has_backward(args: Any, results: Sequence[torch.Tensor]) -> bool:
    """Return whether gradients will flow; a reentrant checkpoint runs its forward without."""
    if torch.is_grad_enabled():
        return any(each.requires_grad for each in results)
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and any(each.requires_grad for each in tensors(args))


def _itself(value: torch.Tensor) -> torch.Tensor:
    return value


@contextmanager
def _generators_kept(watch: CallWatch) -> Iterator[None]:
    before = [states.now() for states in watch.undo.generators]
    try:
        yield
    finally:
        for states in before:
            states.restore()


def _orders(watch: CallWatch, args: Any) -> list[Order]:
    found: dict[int, Order] = {}
    for each in tensors(args):
        mark = watch.rows_of(each)
        if type(mark) is Label:
            found[id(mark.order)] = mark.order
    return list(found.values())


_Axes = Sequence["tuple[int, Order] | None"]


def _forward_axes(watch: CallWatch, args: Any, run: Callable[..., Any], orders: list[Order]) -> _Axes:
    with torch.no_grad():
        whole, *parts = [tensors(run(*_given(watch, args, part))) for part in range(3)]
    found = [matched(each, rows, orders) for each, *rows in zip(whole, *parts, strict=True)]
    return [(each.axis, each.order) if each.order is not None else None for each in found]


def _given(watch: CallWatch, args: Any, part: int, *, grad: bool = False) -> Any:
    """Return the arguments restricted to the rows of a part."""

    def shown(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        mark, rows = watch.rows_of(value), value.detach()
        if type(mark) is Label:
            rows = mark.order.pick(rows, mark.axis, part)
        real = rows.is_floating_point() or rows.is_complex()
        return rows.clone().requires_grad_(grad and real and value.requires_grad)

    return replaced(tuple(args), shown)


def _compare_backward(watch: CallWatch, args: Any, run: Callable[..., Any], axes: _Axes) -> None:
    marks = [watch.rows_of(each) for each in tensors(args)]
    gradients: list[torch.Tensor | None] = []
    whole = _backward(watch, _given(watch, args, 0, grad=True), run, gradients, 1.0)
    parts: list[list[torch.Tensor | None]] = []
    for part in (1, 2):
        given = [
            found[1].few.pick(each, found[0], part) if each is not None and found is not None else each
            for each, found in zip(gradients, axes, strict=True)
        ]
        parts.append(_backward(watch, _given(watch, args, part, grad=True), run, given, _FACTOR))
    for mark, expected, *rows in zip(marks, whole, *parts, strict=True):
        if expected is None or any(each is None for each in rows):
            if expected is not None or any(each is not None for each in rows):
                raise MixesRows(MIXING)
            continue
        if type(mark) is Label:
            few = [mark.order.few.pick(expected, mark.axis, part) for part in (1, 2)]
            fine = all(alike(a, b) for a, b in zip(few, rows, strict=True))
        else:
            fine = alike(expected, rows[0] + rows[1])
        if not fine:
            raise MixesRows(MIXING)


def _backward(
    watch: CallWatch, args: Any, run: Callable[..., Any], given: list[torch.Tensor | None], factor: float
) -> list[torch.Tensor | None]:
    """Return the gradients of the arguments, detached.

    Args:
        given: gradients of the results; filled with random ones if empty.
        factor: factor of these gradients; the returned ones are divided by it.
    """
    with torch.enable_grad():
        results = tensors(run(*args))
        if not given:
            given += [
                torch.rand(each.shape, generator=watch.generator(each.device), device=each.device).to(
                    each.dtype
                )
                if each.requires_grad
                else None
                for each in results
            ]
        wanted = [each for each in tensors(args) if each.requires_grad]
        pairs = [(a, b * factor) for a, b in zip(results, given, strict=True) if b is not None]
        found = iter(
            torch.autograd.grad([a for a, _ in pairs], wanted, [b for _, b in pairs], allow_unused=True)
        )
        gradients = [next(found) if each.requires_grad else None for each in tensors(args)]
    return [each if each is None else each.detach() / factor for each in gradients]
