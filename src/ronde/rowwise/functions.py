"""Looks at functions and attributes of tensors during an observed call: what no operation shows.

Lengths along an axis of rows are given out as `Rows`. A function that is given such a number makes something that
the number of rows decides: it is called again with what the number is for parts of the rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ronde.rowwise import repeat
from ronde.rowwise.checks import only_checks
from ronde.rowwise.labels import Drawn, Label, Mixed, Relative
from ronde.rowwise.mixes_rows import COUNTS, HOST_READ, MixesRows
from ronde.rowwise.noted import without_notes
from ronde.rowwise.operation import Facts, Operation, replaced, tensors
from ronde.rowwise.rows import Rows
from ronde.rowwise.watch import Watch

__all__ = ["Functions"]

_shape: Any = torch.Tensor.shape.__get__  # pyright: ignore[reportAttributeAccessIssue]
_READS = {
    *("tolist", "numpy", "__array__", "__dlpack__", "__repr__", "__format__", "__reduce_ex__", "__contains__"),
    *("data_ptr", "storage", "untyped_storage", "__deepcopy__"),
}
_NOT_OF_ROWS = (type(None), Drawn)
_HOOKS = {"register_hook", "retain_grad", "register_post_accumulate_grad_hook"}
_SPREADS = {"expand", "broadcast_to", "repeat", "tile"}


class Functions(TorchFunctionMode):
    """Gives out lengths, and stops what reads values on the host.

    Args:
        note: is told of each tensor that depends on the batch and that code gets hold of.
    """

    def __init__(self, watch: Watch, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._watch = watch
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        steered = False
        if self._watch.noting:
            args, kwargs, steered = without_notes(args, kwargs)
        try:
            result = self._result(func, args, kwargs)
        except MixesRows as found:
            self._watch.counts.problem = self._watch.counts.problem or str(found)
            raise
        for each in tensors((result,)):
            mark = self._watch.of(each)
            if mark is None and steered:
                self._watch.put(each, Drawn("a number that changes again and again"))
            elif type(mark) not in _NOT_OF_ROWS:
                self._note(each)
        return result

    def _result(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._watch.away:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], torch.Tensor):
            if func == _shape or name in _LENGTHS:
                return self._length(func, name, args, kwargs)
            if name == "stride":
                self._check_stride(args[0])
            self._check(func, name, args)
        rows = list(_rows_in((args, kwargs)))
        if rows:
            return self._counted(func, name, args, kwargs, rows)
        if func in _CHECK_RANGE:
            return self._checked(func, args, kwargs)
        if func in _ONE_OPERATION and self._watch.of(args[0]) is not None and not _keeps_statistics(args, kwargs):
            op = Operation(func, args, kwargs, self._watch.of, facts=Facts(name))
            return repeat.carry_out(self._watch, op, noted=True)
        return func(*args, **kwargs)

    def _checked(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One that looks whether its operand is in range."""
        watch = self._watch
        watch.checking = len(args) > 1 or "num_classes" in kwargs
        try:
            return func(*args, **kwargs)
        finally:
            watch.checking = False

    def _check(self, func: Any, name: str, args: Any) -> None:
        if name in _HOOKS:
            raise MixesRows(
                f"it asks for gradients inside ({name}), which would be those of one rank's rows"
            )
        if name == "backward":
            raise MixesRows("its forward runs backward")
        if name in _READS and self._watch.of(args[0]) is not None and not only_checks():
            raise MixesRows(HOST_READ)
        if name == "__set__" or name == "requires_grad_":
            self._check_set(func, name, args[0])

    def _check_set(self, func: Any, name: str, tensor: torch.Tensor) -> None:
        """Whether something is set on a tensor object that is not its own."""
        if (called := self._watch.undo.called(tensor)) is not None:
            what = name if name != "__set__" else f".{func.__self__.__name__} ="
            raise MixesRows(f"it changes {called} ({what})")

    def _check_stride(self, tensor: torch.Tensor) -> None:
        """What lies outside of rows in memory is as far apart as there are rows."""
        mark = self._watch.of(tensor)
        with torch._C.DisableTorchFunction():
            if type(mark) is Label and mark.order is not None:
                own = tensor.stride(mark.axis)
                if any(tensor.stride(dim) > own for dim in range(tensor.dim()) if tensor.shape[dim] > 1):
                    raise MixesRows(COUNTS)

    def _length(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A length, a shape or a number of entries."""
        tensor = args[0]
        plain = tuple(each.here if isinstance(each, Rows) else each for each in args)
        result = func(*plain, **kwargs)
        shape = self._shape_of(tensor)
        if shape is None:
            return result
        if name in _NUMBERS_OF_ENTRIES:
            return functools.reduce(operator.mul, shape, 1)
        if isinstance(result, torch.Size):
            return torch.Size(shape)
        return shape[plain[1] if len(plain) > 1 else kwargs.get("dim", 0)]

    def _shape_of(self, tensor: torch.Tensor) -> list[int] | None:
        """With what is a number of rows as such; None where there is none."""
        mark = self._watch.of(tensor)
        with torch._C.DisableTorchFunction():
            shape: list[int] = list(tensor.shape)
        counts = self._watch.counts
        if type(mark) is Label and mark.order is not None:
            shape[mark.axis] = _times(counts, len(mark.order))
        elif type(mark) is Relative and len(shape) == mark.parts[0].dim():
            for dim, length in enumerate(shape):
                if mark.parts[1].shape[dim] != length:
                    shape[dim] = _times(counts, length)
        else:
            return None
        return shape

    def _counted(self, func: Any, name: str, args: Any, kwargs: Any, rows: Sequence[Rows]) -> Any:
        """A function that is given numbers of rows."""
        watch = self._watch
        here = _with(args, kwargs, lambda rows: rows.here)
        if name == "randperm":
            raise MixesRows("its random draws cannot be cut (randperm)")
        marks = map(watch.of, tensors((*args, *kwargs.values())))
        known = any(mark is not None and type(mark) is not Drawn for mark in marks)
        if known and not name.startswith("new_"):
            return self._computed(func, name, args, here, rows)
        parts = self._parts(func, name, args, kwargs)
        if parts is None:
            return func(*here[0], **here[1])
        self._announce_draw(name, here, parts)
        result = func(*here[0], **here[1])
        watch.drawn = None
        for each, *of_parts in zip(tensors((result,)), *parts):
            self._adopt(each, of_parts)
        return result

    def _computed(self, func: Any, name: str, args: Any, here: Any, rows: Sequence[Rows]) -> Any:
        """One that is given rows of the batch too: the number must be a size there."""
        watch = self._watch
        if not all(each.is_size() for each in rows) or (name == "__getitem__" and self._is_counted_beside(args)):
            raise MixesRows(COUNTS)
        before, watch.counted = watch.counted, frozenset(each.here for each in rows)
        try:
            result = func(*here[0], **here[1])
        finally:
            watch.counted = before
        if name in _SPREADS:
            self._check_spread(name, args, tensors((result,))[0])
        return result

    def _is_counted_beside(self, args: Any) -> bool:
        """Whether numbers of rows say what is taken along another axis than theirs."""
        mark = self._watch.of(args[0])
        axis = mark.axis if type(mark) is Label else None
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(any(True for _ in _rows_in(each)) for place, each in enumerate(index) if place != axis)

    def _check_spread(self, name: str, args: Any, result: torch.Tensor) -> None:
        """Rows must not be repeated as often as there are rows."""
        mark = self._watch.of(result)
        sizes = list(args[1:]) if len(args) > 2 or not isinstance(args[1], (tuple, list)) else list(args[1])
        axis = mark.axis - (result.dim() - len(sizes)) if type(mark) is Label else None
        for place, size in enumerate(sizes):
            if isinstance(size, Rows) and (name in ("repeat", "tile") or place != axis):
                raise MixesRows(COUNTS)

    def _parts(self, func: Any, name: str, args: Any, kwargs: Any) -> list[list[torch.Tensor]] | None:
        """What the function makes for the few first rows and their parts; None where it makes no tensors."""
        found: list[list[torch.Tensor]] = []
        draws = name in _DRAWS
        for part in range(3):
            own_args, own_kwargs = _with(args, kwargs, lambda rows, part=part: rows.part(part))
            if draws:
                own_kwargs = {**own_kwargs, "device": "meta", "generator": None}
                own_kwargs.pop("out", None)
                own_kwargs.pop("generator")
            with self._watch.looking_away(), torch._C.DisableTorchFunction():
                result = tensors((func(*own_args, **own_kwargs),))
            if not result:
                return None
            found.append(result)
        return found

    def _announce_draw(self, name: str, here: Any, parts: list[list[torch.Tensor]]) -> None:
        """Of random numbers to be made: where they have rows."""
        if name not in _DRAWS or name.startswith("empty"):
            return
        watch = self._watch
        few, first, _ = (each[0].shape for each in parts)
        counts = watch.counts
        changed = [dim for dim in range(len(few)) if few[dim] != first[dim]]
        inner, rest = divmod(few[changed[0]], counts.parts[0]) if len(changed) == 1 else (0, 1)
        if rest or inner != 1:
            raise MixesRows(f"its random draws cannot be cut ({name})")
        watch.drawn = changed[0], watch.orders.batch

    def _adopt(self, made: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        """Know of a tensor what it is for parts of the rows."""
        watch = self._watch
        with torch._C.DisableTorchFunction(), watch.looking_away():
            if type(watch.of(made)) is Label:
                return
            if any(each.is_meta for each in parts):
                self._adopt_shape(made, parts)
                return
            whole, *others = parts
            if all(each.shape == made.shape and torch.equal(each, made) for each in parts):
                return
            dims = [dim for dim in range(made.dim()) if made.dim() == whole.dim() and _differ(made, parts, dim)]
            times, rest = divmod(made.shape[dims[0]], watch.counts.mine) if len(dims) == 1 else (0, 1)
            if not rest:
                order = watch.orders.repeated(1, times)
                found = repeat.matched(whole, others, [order])
                if found.order is not None and torch.equal(order.pick(made, dims[0], 0), whole):
                    watch.label(made, order, dims[0])
                    return
            watch.put(made, Relative(tuple(parts)))

    def _adopt_shape(self, made: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        """Of memory with no values yet."""
        watch = self._watch
        dims = [dim for dim in range(made.dim()) if _differ(made, parts, dim)]
        times, rest = divmod(made.shape[dims[0]], watch.counts.mine) if len(dims) == 1 else (0, 1)
        if dims and rest:
            watch.put(made, Mixed("empty"))
        elif dims:
            watch.label(made, watch.orders.repeated(1, times), dims[0])


# They come as many operations, of which some take rows for something else.
_ONE_OPERATION = {F.instance_norm, torch.instance_norm, F.embedding_bag, torch.embedding_bag}
_CHECK_RANGE = {F.one_hot}


def _keeps_statistics(args: Any, kwargs: Any) -> bool:
    """Whether a norm of instances keeps what depends on the batch."""
    return kwargs.get("running_mean") is not None and kwargs.get("use_input_stats", True)


_LENGTHS = {"size", "numel", "nelement"}
_NUMBERS_OF_ENTRIES = {"numel", "nelement"}
_DRAWS = {"rand", "randn", "randint", "normal", "empty", "new_empty", "empty_strided", "new_empty_strided"}


def _differ(made: torch.Tensor, parts: Sequence[torch.Tensor], dim: int) -> bool:
    return any(each.shape[dim] != made.shape[dim] for each in parts) or parts[1].shape[dim] != parts[0].shape[dim]


def _times(counts: Any, length: int) -> int:
    """A length that is a multiple of the number of rows."""
    times, rest = divmod(length, counts.mine)
    if rest:
        raise MixesRows(COUNTS)
    return Rows(counts, lambda rows: rows * times)


def _with(args: Any, kwargs: Any, fn: Any) -> tuple[Any, Any]:
    """Arguments with plain numbers in place of numbers of rows."""

    def plain(value: Any) -> Any:
        if isinstance(value, Rows):
            return fn(value)
        if isinstance(value, torch.Size):
            return torch.Size([plain(each) for each in value])
        if isinstance(value, slice):
            return slice(plain(value.start), plain(value.stop), plain(value.step))
        return value

    return replaced(tuple(args), plain), replaced(dict(kwargs), plain)


def _rows_in(value: Any) -> Iterator[Rows]:
    if isinstance(value, Rows):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _rows_in(each)
    elif isinstance(value, dict):
        yield from _rows_in(tuple(value.values()))
    elif isinstance(value, slice):
        yield from _rows_in((value.start, value.stop, value.step))

