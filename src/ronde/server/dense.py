"""A server's part of dense parameters: it sums gradients, and steps with torch's own optimizers.

A key is a number for a parameter's elements on this server, flat. Workers that make one global step push
together: gradients are added in the order of ranks, and divided by their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ronde.server.record import Answer, Array, Record
from ronde.server.transport.wire import Message, Operation

__all__ = ["STEPPED", "DenseShard", "array_of", "tensor_of"]

STEPPED = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "ASGD", "Rprop",
)  # fmt: skip
"""Classes of torch.optim that a server runs: those that update every element by itself."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
}
# numpy has no bfloat16: its bytes travel.
_AS_BYTES = (torch.bfloat16,)


def array_of(tensor: torch.Tensor) -> Array:
    """The same memory for the wire, of a contiguous tensor on the CPU."""
    flat = tensor.detach().view(-1)
    return (flat.view(torch.uint8) if flat.dtype in _AS_BYTES else flat).numpy()


def tensor_of(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A copy, of an array as `array_of` makes it."""
    raw = torch.from_numpy(np.array(array).reshape(-1))
    return raw.view(dtype) if dtype in _AS_BYTES else raw.to(dtype)


@dataclasses.dataclass(slots=True)
class _Stepped:
    """An optimizer of the script's, as it is on this server."""

    kind: str
    keys: list[int]
    torch_optimizer: Any


class DenseShard:
    """Parameters, gradients and optimizers by key."""

    changes = frozenset(
        {
            Operation.ADD_GRADIENTS,
            Operation.SCALE_GRADIENTS,
            Operation.STEP,
            Operation.INIT,
            Operation.PUSH,
            Operation.ADD,
        }
    )
    reads = frozenset({Operation.GRADIENTS, Operation.OPTIMIZER_STATE, Operation.PULL})

    def __init__(self) -> None:
        self._values: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, torch.Tensor] = {}
        self._optimizers: dict[int, _Stepped] = {}

    def combine(self, messages: Sequence[Message]) -> Answer:
        first = messages[0]
        match first.operation:
            case Operation.ADD_GRADIENTS:
                return first.meta, [array_of(_sum(messages).div_(len(messages)))]
            case Operation.PUSH | Operation.ADD:
                return first.meta, [array_of(_sum(messages))]
            case Operation.INIT:
                return first.meta, [array_of(_sum(messages[:1]))]
            case Operation.STEP:
                return _joined(messages)
            case _:
                float(first.meta["factor"])
                return first.meta, []

    def apply(self, record: Record) -> None:
        match record.operation:
            case Operation.ADD_GRADIENTS:
                self._add(record.meta, record.arrays[0])
            case Operation.INIT | Operation.PUSH | Operation.ADD:
                self._write(record)
            case Operation.SCALE_GRADIENTS:
                for key in record.meta["keys"]:
                    self._gradients[key].mul_(record.meta["factor"])
            case _:
                self._step(record.meta, record.arrays)

    def answer(self, message: Message) -> Answer:
        match message.operation:
            case Operation.STEP:
                keys = [key for group in message.meta["groups"] for key in group["keys"]]
            case Operation.PUSH | Operation.ADD | Operation.INIT if message.meta.get("pull"):
                keys = message.meta["keys"]
            case _:
                return {}, []
        return {}, [array_of(flat) for flat in _laid_out([self._values[key] for key in keys])]

    def read(self, message: Message) -> Answer:
        if message.operation in (Operation.GRADIENTS, Operation.PULL):
            home = self._gradients if message.operation is Operation.GRADIENTS else self._values
            found = [home[key] for key in message.meta["keys"]]
            return {}, [array_of(flat) for flat in _laid_out(found)]
        stepped = self._optimizers[message.meta["optimizer"]]
        entries: list[list[Any]] = []
        arrays: list[Array] = []
        for key in message.meta["keys"]:
            for name, value in stepped.torch_optimizer.state.get(self._values[key], {}).items():
                _tell(key, name, value, entries, arrays)
        return {"entries": entries}, arrays

    def state(self) -> Answer:
        entries: list[list[Any]] = []
        arrays: list[Array] = []
        for name, tensors in (("value", self._values), ("gradient", self._gradients)):
            for key, tensor in tensors.items():
                _tell(key, name, tensor, entries, arrays)
        optimizers: list[dict[str, Any]] = []
        for number, stepped in self._optimizers.items():
            told: list[list[Any]] = []
            for key in stepped.keys:
                for name, value in stepped.torch_optimizer.state.get(self._values[key], {}).items():
                    _tell(key, name, value, told, arrays)
            optimizers.append({"number": number, "kind": stepped.kind, "keys": stepped.keys, "entries": told})
        return {"entries": entries, "optimizers": optimizers}, arrays

    def load(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        self.__init__()
        left = iter(arrays)
        homes = {"value": self._values, "gradient": self._gradients}
        for key, name, dtype, _ in meta["entries"]:
            homes[name][key] = tensor_of(next(left), _DTYPES[dtype])
        for each in meta["optimizers"]:
            stepped = self._stepped(each["number"], each["kind"], each["keys"])
            self._give_state(stepped, each["entries"], left)

    def _write(self, record: Record) -> None:
        """Values are set where there are none (INIT), set (PUSH), or added to (ADD)."""
        meta = record.meta
        came = tensor_of(record.arrays[0], _DTYPES[meta["dtype"]])
        for key, part in zip(meta["keys"], came.split(meta["sizes"]), strict=True):
            held = self._values.get(key)
            if held is None or (record.operation is Operation.PUSH and held.numel() != part.numel()):
                self._values[key] = part
            elif record.operation is Operation.PUSH:
                held.copy_(part)
            elif record.operation is Operation.ADD:
                held.add_(part)

    def _add(self, meta: dict[str, Any], array: Array) -> None:
        mean = tensor_of(array, _DTYPES[meta["dtype"]])
        begin = 0
        for key, size, fresh in zip(meta["keys"], meta["sizes"], meta["fresh"], strict=True):
            part = mean[begin : begin + size]
            begin += size
            held = self._gradients.get(key)
            if fresh or held is None:
                self._gradients[key] = part
            else:
                held.add_(part)

    @torch.no_grad()
    def _step(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        left = iter(arrays)
        given: list[list[Any]] = []
        for key, name, dtype, _ in meta["values"]:
            value = tensor_of(next(left), _DTYPES[dtype])
            if name == "value":
                held = self._values.get(key)
                if held is None or held.numel() != value.numel() or held.dtype != value.dtype:
                    self._values[key] = value
                else:
                    held.copy_(value)  # the same tensor: an optimizer knows its state by it
            else:
                self._gradients[key] = value
        keys = [key for group in meta["groups"] for key in group["keys"]]
        stepped = self._stepped(meta["optimizer"], meta["class"], keys)
        if meta["anew"]:
            stepped.torch_optimizer.state.clear()
        given += meta["state"]
        self._give_state(stepped, given, left)
        self._take_groups(stepped, meta["groups"])
        for key in keys:
            value = self._values[key]
            value.grad = self._gradients[key]
        with _default_dtype(_DTYPES[meta["default"]]):
            stepped.torch_optimizer.step()
        for key in keys:
            self._values[key].grad = None

    def _stepped(self, number: int, kind: str, keys: list[int]) -> _Stepped:
        known = self._optimizers.get(number)
        if known is not None and known.kind == kind:
            known.keys = list(dict.fromkeys([*known.keys, *keys]))
            return known
        placeholder = [torch.zeros(0)]
        made = getattr(torch.optim, STEPPED[STEPPED.index(kind)])(placeholder, lr=0.0)
        self._optimizers[number] = _Stepped(kind, list(keys), made)
        return self._optimizers[number]

    def _take_groups(self, stepped: _Stepped, groups: Sequence[dict[str, Any]]) -> None:
        """Parameters and hyper-parameters as the script's optimizer has them now."""
        defaults = stepped.torch_optimizer.defaults
        stepped.torch_optimizer.param_groups = [
            {
                **defaults,
                **{
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in group["options"].items()
                },
                "params": [self._values[key] for key in group["keys"]],
            }
            for group in groups
        ]

    def _give_state(self, stepped: _Stepped, entries: Iterable[list[Any]], arrays: Any) -> None:
        for key, name, dtype, scalar in entries:
            state = stepped.torch_optimizer.state[self._values[key]]
            if dtype is None:
                state[name] = scalar
            elif scalar is None:
                state[name] = tensor_of(next(arrays), _DTYPES[dtype])
            else:
                state[name] = torch.tensor(scalar, dtype=_DTYPES[dtype])


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _sum(messages: Sequence[Message]) -> torch.Tensor:
    """Over workers, added in their order."""
    first = messages[0]
    dtype = _DTYPES[first.meta["dtype"]]
    total = int(sum(first.meta["sizes"]))
    if len(first.meta["keys"]) != len(first.meta["sizes"]):
        raise ValueError("a size for each key")
    summed = tensor_of(first.arrays[0], dtype)
    for message in messages:
        if message.meta["keys"] != first.meta["keys"] or message.meta["dtype"] != first.meta["dtype"]:
            raise ValueError(f"worker {message.worker} pushes other keys")
        if message.arrays[0].nbytes != total * dtype.itemsize:
            raise ValueError(f"{message.arrays[0].nbytes} bytes are not {total} elements of {dtype}")
        if message is not first:
            theirs = torch.from_numpy(message.arrays[0].reshape(-1))
            summed.add_(theirs.view(dtype) if dtype in _AS_BYTES else theirs)
    return summed


def _joined(messages: Sequence[Message]) -> Answer:
    """A step of all workers: each has sent a share of what the servers do not have yet."""
    first = messages[0].meta
    if first["class"] not in STEPPED:
        raise ValueError(f"there is no optimizer {str(first['class'])[:40]} on servers")
    for group in first["groups"]:
        if not isinstance(group["options"], dict) or not all(type(key) is int for key in group["keys"]):
            raise ValueError("a group has keys and options")
    values: list[list[Any]] = []
    state: list[list[Any]] = []
    of_values: list[Array] = []
    of_state: list[Array] = []
    for message in messages:
        if message.meta["groups"] != first["groups"]:
            raise ValueError(f"worker {message.worker} steps with other hyper-parameters or parameters")
        arrays = iter(message.arrays)
        for key, name, dtype, size in message.meta["values"]:
            array = next(arrays)
            if array.nbytes != size * _DTYPES[dtype].itemsize or name not in ("value", "gradient"):
                raise ValueError(f"key {key} has other elements than it says")
            values.append([key, name, dtype, None])
            of_values.append(array)
        for entry in message.meta["state"]:
            _, _, dtype, scalar = entry
            state.append(entry)
            if dtype is not None and scalar is None:
                of_state.append(next(arrays))
    meta = {name: first[name] for name in ("optimizer", "class", "groups", "anew", "default")}
    return {**meta, "values": values, "state": state}, [*of_values, *of_state]


def _laid_out(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """End to end, one after another for each dtype, in the order in which dtypes first come."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    return [each[0] if len(each) == 1 else torch.cat(each) for each in by_dtype.values()]


def _tell(key: int, name: str, value: Any, entries: list[list[Any]], arrays: list[Array]) -> None:
    """An entry of state for the wire: key, name, dtype or None, and a value or None for an array."""
    if not isinstance(value, torch.Tensor):
        entries.append([key, name, None, value])
    elif not value.dim():
        entries.append([key, name, str(value.dtype).removeprefix("torch."), value.item()])
    else:
        entries.append([key, name, str(value.dtype).removeprefix("torch."), None])
        arrays.append(array_of(value))
