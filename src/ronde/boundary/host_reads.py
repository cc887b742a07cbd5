"""What a rehearsal reads on the host: a value of the batch, by which a shard could take another branch than
the whole, or a tensor of the model's own or a random draw, whose later values are not rehearsed.

A tensor that is made of nothing but numbers in the code is the same on every shard, and may be read; of
numbers that change again and again it may not, as only this one is rehearsed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ronde.boundary.guards import Refusal
from ronde.boundary.noted import is_noted
from ronde.boundary.untouched import Untouched
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.global_tensor import GlobalTensor
from ronde.tensor.memory import memory, tensors

__all__ = ["Conversions", "HostReads"]

# What is made of parameters is kept for as long as a trial runs, and who decides by one reads few numbers.
_SMALL = 4096
# Between an operation and the code that asks for it.
_OURS_AND_TORCHS = ("torch", "ronde", "contextlib", "functools")
_CONSTANT, _DRAW = "", "a random draw"
_NUMBER = "a tensor made of a number that changes again and again"
# What `torch.tensor(...)` of Python's numbers comes to.
_FROM_NUMBERS = torch.ops.aten.lift_fresh.default


def _checks_arguments() -> bool:
    """Whether torch reads a value that is none of the batch's, or only for an error or a faster kernel.

    A distribution checks its parameters or a sample, a transformer asks whether its mask is the causal one, a
    batch norm with momentum=None weighs by its number of batches.
    """
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_OURS_AND_TORCHS):
            return False  # what asks is the user's code, or a library's
        if module == "torch.distributions.distribution":
            return True
        if module == "torch.nn.modules.transformer" and frame.f_code.co_name == "_detect_is_causal_mask":
            return True
        if module == "torch.nn.modules.batchnorm" and frame.f_code.co_name == "forward":
            return True
        frame = frame.f_back
    return False


class HostReads:
    """Stops a model that reads a tensor on the host: what it would do with the value (write it to a log, say)
    must not be done for a trial.

    Args:
        module: what is run, whose parameters and buffers are no values of the batch.
        others: arguments that are none either.
    """

    def __init__(self, module: torch.nn.Module, others: Iterable[torch.Tensor]) -> None:
        # Names of what depends on these alone, by its memory, which must not be used again meanwhile.
        self._names: dict[int, str] = {}
        self._held: list[torch.Tensor] = []
        for kind, name, value in _own_tensors(module):
            self._call(value, f"its {kind} {name}")
        for value in others:
            self._call(value, "an argument")
        self.refused = ""
        # What of the model is run.
        self.where = "forward"
        # Whether an operation is under way that reads a value only to check it.
        self.checking = False

    def check(self, func: Any, args: Any) -> None:
        """An operation is about to be carried out."""
        read = _read(func, args)
        if read and not self.only_checks():
            self.refuse(read)

    def only_checks(self) -> bool:
        """Whether what is under way looks at values only to check them."""
        return self.checking or _checks_arguments()

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """It has been: what it has made of these alone is as good as one of them, all else is the batch's."""
        name = self._name_of_result(func, (args, *(kwargs or {}).values()))
        for value in tensors(result):
            if name is None:
                self._names.pop(memory(value) or 0, None)
            elif value.numel() <= _SMALL:
                self._call(value, name)

    def follow_number(self, result: Any) -> None:
        """Made with a number that tells what it decides, which a tensor does not."""
        for value in tensors(result):
            if self._names.get(memory(value) or 0) == _CONSTANT:
                self._call(value, _NUMBER)

    def refuse(self, read: Sequence[torch.Tensor]) -> None:
        """Stop the run, unless what is read is the same on every shard and at every call."""
        name = self._name(read)
        if name == _CONSTANT:
            return
        if name is None:
            self.refused = f"its {self.where} reads a value of the batch on the host"
        else:
            self.refused = f"its {self.where} reads {name} on the host"
        raise Refusal(self.refused)

    def _name_of_result(self, func: Any, arguments: Any) -> str | None:
        used = tensors(arguments)
        name = _CONSTANT if not used or func is _FROM_NUMBERS else self._name(used)
        drawn = name is not None and torch.Tag.nondeterministic_seeded in func.tags
        return _DRAW if drawn else name

    def _name(self, values: Sequence[torch.Tensor]) -> str | None:
        """What the values are made of, other than the batch: the first with a name; None if of the batch."""
        names = [self._names.get(memory(value) or 0) for value in values]
        return None if None in names else next(filter(None, names), _CONSTANT)

    def _call(self, value: torch.Tensor, name: str) -> None:
        place = memory(value)
        if place is not None:
            self._names[place] = name
            self._held.append(value)


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Each tensor of a module and those inside it: what it is, its name there, itself."""
    for part in module.modules():
        for kind, held in (
            ("parameter", part._parameters),
            ("buffer", part._buffers),
            ("tensor", vars(part)),
        ):
            for name, value in held.items():
                if type(value) is Untouched or not isinstance(value, torch.Tensor):
                    continue
                if not isinstance(value, (GlobalTensor, DeferredScalar)):
                    yield kind, name, value


_READS = {
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "_unique",
    "bincount",
    "_nested_tensor_from_mask_left_aligned",
    "_choose_qparams_per_tensor",
}


def _read(func: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors of which the host learns a value, or on whose values a shape comes to depend."""
    name = func._schema.name.split("::")[1]
    if name == "repeat_interleave":
        return [value for value in tensors(args) if value.dtype in (torch.int64, torch.int32)]
    if name == "index":
        return [index for index in tensors(args[1]) if index.dtype == torch.bool]
    return tensors(args) if name in _READS else []


class Conversions(TorchFunctionMode):
    """Watches conversions to Python and NumPy, which no dispatched operation shows."""

    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CONVERSIONS and not _checks_arguments():
            self._reads.refuse(args[:1])
        if func is not torch.nn.functional.one_hot or not (len(args) > 1 or "num_classes" in kwargs):
            result = func(*args, **kwargs)
            if any(map(is_noted, (*args, *kwargs.values()))):
                self._reads.follow_number(result)
            return result
        # It looks whether its classes are in range; its shape does not depend on them.
        self._reads.checking = True
        try:
            return func(*args, **kwargs)
        finally:
            self._reads.checking = False


_CONVERSIONS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__}
