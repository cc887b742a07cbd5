"""An `autograd.Function` of the script's: its forward and its backward are tried as one operation each.

What torch's own operations do in backward follows from what they do in forward. What a script's function
does must be looked at: backward of the parts, on random gradients, must give the rows of the whole's, and
their sum where there are no rows. On shards gradients are as many times larger as there are ranks, so it
must be linear, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ronde.rowwise import repeat
from ronde.rowwise.alike import alike
from ronde.rowwise.labels import Drawn, Label
from ronde.rowwise.mixes_rows import MixesRows, changes, meet
from ronde.rowwise.normalize import normalize
from ronde.rowwise.operation import Facts, Operation, replaced, tensors
from ronde.rowwise.parts import PARTS
from ronde.rowwise.repeat import Found, matched
from ronde.rowwise.watch import Away, Watch

__all__ = ["functions_tried"]

MIXING = "its backward (a torch.autograd.Function) mixes rows, or is not linear in the gradient"
# A power of two, which leaves digits alone, and large, for thresholds.
_FACTOR = 2.0**10


@contextmanager
def functions_tried(watch: Watch) -> Iterator[None]:
    """Inside, functions of the script's are tried as they are applied."""
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any) -> Any:
            return plain.__func__(kind, *args, **kwargs)

        if watch.away:
            if watch.ranks.normalizes(kind):
                raise MixesRows(meet(kind.__name__))
            return run(*args)
        if watch.ranks.normalizes(kind):
            with torch._C.DisableTorchFunction():
                return _normalized(watch, args, run)
        with torch._C.DisableTorchFunction():
            rows = [each for each in tensors(args) if watch.of(each) is not None]
        return _tried(watch, kind, args, run) if rows and _is_users(kind) else run(*args)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[assignment]


def _is_users(kind: Any) -> bool:
    """That of an operator of the script's (`torch.library.custom_op`) is called by a function of torch's."""
    home = kind.__module__
    return home == "torch._library.autograd" or home.split(".")[0] not in ("torch", "ronde")


def _normalized(watch: Watch, args: Any, run: Callable[..., Any]) -> Any:
    value, *others = tensors(args)
    running = [each for each in others if not each.requires_grad and watch.undo.name_of(each) is not None]
    return normalize(watch, value, running, lambda: run(*args))


def _tried(watch: Watch, kind: Any, args: Any, run: Callable[..., Any]) -> Any:
    name = kind.__name__
    with torch._C.DisableTorchFunction():
        op = Operation(kind, args, {}, watch.of, facts=Facts(name))
        known = all(type(mark) in (type(None), Label, Drawn) for mark in op.marks)
        form = repeat.form_of(op), torch.is_grad_enabled(), *(each.requires_grad for each in op.operands)
    if form[0] is None or not known:
        raise MixesRows(meet(name))
    with watch.looking_away(Away.NOTED):
        result = run(*args)
    results = tensors((result,))
    given = {id(each) for each in op.operands}
    if any(id(each) in given for each in results):
        raise MixesRows(changes("its argument", name))
    with torch._C.DisableTorchFunction(), torch.no_grad(), watch.looking_away():
        watch.made(results)
    if form not in watch.forms.found:
        with torch._C.DisableTorchFunction(), watch.trying() as trial:
            graded = torch.is_grad_enabled() and any(each.requires_grad for each in results)
            found = _learnt(watch, op, run, graded=graded)
            if changed := trial.changed():
                raise MixesRows(f"its backward changes {changed}, which depends on the batch")
        repeat.remember(watch, form, found)
    with torch._C.DisableTorchFunction(), torch.no_grad(), watch.looking_away():
        for each, one in zip(results, repeat.remembered(watch, form), strict=True):
            watch.put(each, one.mark(each, name))
    return result


def _learnt(watch: Watch, op: Operation, run: Callable[..., Any], *, graded: bool) -> list[Found]:
    """Where rows lie in each result.

    Args:
        graded: backward is to be tried, too.
    """
    orders = {id(label.order): label.order for label in op.labels if label.order is not None}
    with torch.no_grad():
        whole, *parts = [tensors((run(*_given(watch, op.args, part)),)) for part in PARTS]
        found = [
            matched(each, rows, list(orders.values())) for each, *rows in zip(whole, *parts, strict=True)
        ]
    if graded:
        if any(each.mixed for each in found):
            raise MixesRows(meet(op.facts.name))
        with saved_tensors_hooks(torch.Tensor.detach, _itself):  # a checkpoint counts what is saved
            _compare_backward(watch, op.args, run, found)
    return found


def _itself(value: torch.Tensor) -> torch.Tensor:
    return value


def _given(watch: Watch, args: Any, part: int, *, grad: bool = False) -> Any:
    """The arguments of a part."""

    def shown(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        mark, rows = watch.of(value), value.detach()
        if type(mark) is Label and mark.order is not None:
            rows = mark.order.pick(rows, mark.axis, part)
        real = rows.is_floating_point() or rows.is_complex()
        return rows.clone().requires_grad_(grad and real and value.requires_grad)

    return replaced(tuple(args), shown)


def _compare_backward(watch: Watch, args: Any, run: Callable[..., Any], found: Sequence[Found]) -> None:
    given: list[torch.Tensor | None] = []
    whole = _backward(watch, _given(watch, args, 0, grad=True), run, given, 1.0)
    parts: list[list[torch.Tensor | None]] = []
    for part in (1, 2):
        rows = [
            each if each is None or lies.order is None else lies.order.few.pick(each, lies.axis, part)
            for each, lies in zip(given, found, strict=True)
        ]
        parts.append(_backward(watch, _given(watch, args, part, grad=True), run, rows, _FACTOR))
    marks = [*map(watch.of, tensors(args)), *([None] * (len(whole) - len(tensors(args))))]
    for mark, expected, first, second in zip(marks, whole, *parts, strict=True):
        if expected is None or first is None or second is None:
            fine = expected is first is second
        elif type(mark) is Label and mark.order is not None:
            few = (mark.order.few.pick(expected, mark.axis, part) for part in (1, 2))
            fine = all(map(alike, few, (first, second)))
        else:
            fine = alike(expected, first + second)
        if not fine:
            raise MixesRows(MIXING)


def _backward(
    watch: Watch, args: Any, run: Callable[..., Any], given: list[torch.Tensor | None], factor: float
) -> list[torch.Tensor | None]:
    """Gradients of the arguments, and of what of the module's a backward inside gives gradients to.

    Args:
        given: gradients of the results; random ones are put there if it is empty.
        factor: what these are multiplied by, and gradients are divided by.
    """
    leaves = [each for _, each in watch.undo.module.tensors if each.is_leaf and each.requires_grad]
    before = [each.grad for each in leaves]
    added: set[int] = set()
    hooks = [each.register_post_accumulate_grad_hook(lambda leaf: added.add(id(leaf))) for each in leaves]
    try:
        for each in leaves:
            each.grad = None
        with torch.enable_grad():
            results = tensors((run(*args),))
            if not given:
                given += [_drawn(watch, each) if each.requires_grad else None for each in results]
            pairs = [(a, b * factor) for a, b in zip(results, given, strict=True) if b is not None]
            torch.autograd.backward([a for a, _ in pairs], [b for _, b in pairs])
        if any(each.grad is not None and id(each) not in added for each in leaves):
            # No reducer would add that up over ranks.
            raise MixesRows(
                "its backward uses the .grad of a parameter, where it finds that of one rank's rows"
            )
        found = [each.grad for each in (*tensors(args), *leaves)]
    finally:
        for each, hook, gradient in zip(leaves, hooks, before, strict=True):
            hook.remove()
            each.grad = gradient
    return [each if each is None else each.detach() / factor for each in found]


def _drawn(watch: Watch, like: torch.Tensor) -> torch.Tensor:
    made = torch.rand(like.shape, generator=watch.generator(like.device), device=like.device)
    return made.to(like.dtype)
