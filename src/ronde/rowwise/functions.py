"""A function mode for observed calls: lengths and host reads, which no operation shows.

A length along an axis of rows is returned as `RowsInt`. Reading values on the host is an error.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.rowwise import counted, repeat
from ronde.rowwise.checks import only_checks
from ronde.rowwise.labels import Drawn, Label, Relative
from ronde.rowwise.operation import Facts, ObservedOperation, replaced, tensors
from ronde.rowwise.rows_int import RowsInt
from ronde.rowwise.verdict import BACKWARD, COUNTS, HOST_READ, MixesRows
from ronde.rowwise.watch import CallWatch

__all__ = ["Functions"]

_shape: Any = torch.Tensor.shape.__get__  # pyright: ignore[reportAttributeAccessIssue]
_CONVERSIONS = {"tolist", "numpy", "__array__", "__dlpack__"}
_READS = {
    *_CONVERSIONS,
    *("__repr__", "__format__", "__reduce_ex__", "__contains__", "data_ptr", "__deepcopy__"),
}
_HOOKS = {"register_hook", "retain_grad", "register_post_accumulate_grad_hook"}


class Functions(TorchFunctionMode):
    """Returns lengths as `RowsInt`, and rejects host reads of values.

    Args:
        note: function called with each tensor that depends on the batch and is visible to code.
    """

    def __init__(self, watch: CallWatch, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._watch = watch
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            result = self._result(func, args, kwargs)
        except MixesRows as found:
            self._watch.counts.problem = self._watch.counts.problem or str(found)
            raise
        for each in tensors(result):
            if self._watch.rows_of(each) is not None:
                self._note(each)
        return result

    def _result(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._watch.away:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], torch.Tensor):
            if func == _shape or name in _LENGTHS:
                return self._length(func, name, args, kwargs)
            self._check(func, name, args)
        if name in _FILLS and any(map(self._is_own, tensors((*args[1:], *kwargs.values())))):
            return self._filled(func, args, kwargs)
        if any(True for _ in counted.rows_in((args, kwargs))):
            return counted.call(self._watch, func, args, kwargs)
        if func in _CHECK_RANGE and (len(args) > 1 or "num_classes" in kwargs):
            return self._within(func, args, kwargs, "checking")
        if name in _NOISES:
            return self._within(func, args, kwargs, "makes_noise")
        if (
            getattr(func, "__wrapped__", func) in _ONE_OPERATION  # torch's own function, if patched
            and self._watch.rows_of(args[0]) is not None
            and not _keeps_statistics(args, kwargs)
        ):
            op = ObservedOperation(func, args, kwargs, self._watch.of, facts=Facts(name))
            return repeat.carry_out(self._watch, op, function=True)
        return func(*args, **kwargs)

    def _is_own(self, value: torch.Tensor) -> bool:
        return type(self._watch.of(value)) is Drawn and value.dim() == 0

    def _filled(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Fill a tensor with a scalar tensor's value, which torch alone may read."""

        def plain(value: Any) -> Any:
            return value.item() if isinstance(value, torch.Tensor) and self._is_own(value) else value

        own = next(filter(self._is_own, tensors((*args[1:], *kwargs.values()))))
        with DisableTorchFunction(), self._watch.looking_away():
            given, named = replaced(tuple(args[1:]), plain), replaced(dict(kwargs), plain)
        result = self._result(func, (args[0], *given), named)
        if self._watch.of(result) is None:
            self._watch.put(result, self._watch.of(own))
        return result

    def _within(self, func: Any, args: Any, kwargs: Any, what: str) -> Any:
        """Call a function while the flag `what` of the watch is set."""
        setattr(self._watch, what, True)
        try:
            return func(*args, **kwargs)
        finally:
            setattr(self._watch, what, False)

    def _check(self, func: Any, name: str, args: Any) -> None:
        if name in _HOOKS:
            raise MixesRows(f"it takes gradients inside ({name}), which would be of one rank's rows [R339]")
        if name == "backward":
            raise MixesRows(BACKWARD)
        if name in _READS and (mark := self._watch.of(args[0])) is not None and not only_checks():
            if type(mark) is not Drawn:
                raise MixesRows(HOST_READ)
            if name in _CONVERSIONS:
                raise MixesRows(f"its forward reads {mark.what} on the host [R335]")
        if name == "__set__" or name == "requires_grad_":
            self._check_set(func, name, args[0])

    def _check_set(self, func: Any, name: str, tensor: torch.Tensor) -> None:
        """Reject setting an attribute of a tensor that is not local to the call."""
        if (called := self._watch.undo.called(tensor)) is not None:
            what = name if name != "__set__" else f".{func.__self__.__name__} ="
            raise MixesRows(f"it changes {called} ({what}) [R343]")

    def _length(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return a length, shape or number of entries, with `RowsInt` where due."""
        tensor = args[0]
        plain = tuple(each.here if isinstance(each, RowsInt) else each for each in args)
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
        """Return the tensor's shape with `RowsInt` for numbers of rows; None without any."""
        mark = self._watch.rows_of(tensor)
        with DisableTorchFunction():
            shape: list[int] = list(tensor.shape)
        counts = self._watch.counts
        if type(mark) is Label:
            shape[mark.axis] = _times(counts, len(mark.order))
        elif type(mark) is Relative and len(shape) == mark.parts[0].dim():
            for dim, length in enumerate(shape):
                if mark.parts[1].shape[dim] != length:
                    shape[dim] = _times(counts, length)
        else:
            return None
        return shape


# Functions that are analysed as one operation: some of their operations would misread rows.
_ONE_OPERATION = {F.instance_norm, torch.instance_norm, F.embedding_bag, torch.embedding_bag}
# Functions that fill a tensor with one value, which may be a scalar tensor.
_FILLS = {"full", "new_full", "full_like"}
# Functions that check whether their operand is in range.
_CHECK_RANGE = {F.one_hot}
# Functions that draw noise per row and channel, of a size that Python does not see.
_NOISES = {"dropout1d", "dropout2d", "dropout3d", "feature_dropout", "feature_alpha_dropout"}


def _keeps_statistics(args: Any, kwargs: Any) -> bool:
    """Return whether an instance norm updates running statistics."""
    return kwargs.get("running_mean") is not None and kwargs.get("use_input_stats", True)


_LENGTHS = {"size", "numel", "nelement"}
_NUMBERS_OF_ENTRIES = {"numel", "nelement"}


def _times(counts: Any, length: int) -> int:
    """Return a length as a multiple of the number of rows."""
    times, rest = divmod(length, counts.mine)
    if rest:
        raise MixesRows(COUNTS)
    return RowsInt.length(counts, times)
