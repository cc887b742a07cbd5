"""A server's dense parameters: sums gradients and runs optimizers of `torch.optim`.

A key is a number for the flat elements of one parameter on this server. Workers push a global step together:
their gradients are added in rank order and divided by the number of workers.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ronde.server.array_codec import Array
from ronde.server.dense_checks import (
    DTYPES,
    STEPPED,
    check_answer,
    check_parts,
    check_push_step,
    check_rows,
    check_same,
    check_scale,
    check_step,
    name_of,
)
from ronde.server.record import Answer, Record
from ronde.server.request_forms import (
    AddGradients,
    PullRows,
    PushStep,
    ScaleGradients,
    Step,
    StepRecord,
    Values,
    fields_of,
    read_form,
)
from ronde.server.transport.wire import Message, Opcode

__all__ = ["STEPPED", "DenseShard", "array_of", "tensor_of", "tensor_view"]

# numpy lacks bfloat16, so its raw bytes are sent.
_AS_BYTES = (torch.bfloat16,)
_PUSHES = (Opcode.PUSH, Opcode.ADD, Opcode.INIT, Opcode.PUSH_STEP)


def array_of(tensor: torch.Tensor) -> Array:
    """Return a flat numpy view of a contiguous CPU tensor; bfloat16 as uint8 bytes."""
    flat = tensor.detach().view(-1)
    return (flat.view(torch.uint8) if flat.dtype in _AS_BYTES else flat).numpy()


def tensor_of(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor copied from an array that `array_of` made."""
    raw = torch.from_numpy(np.array(array).reshape(-1))
    return raw.view(dtype) if dtype in _AS_BYTES else raw.to(dtype)


def tensor_view(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor that shares the array's memory. Callers must not write to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "the array is not writable"
        raw = torch.from_numpy(array.reshape(-1))
    return raw.view(dtype) if dtype in _AS_BYTES else raw


@dataclasses.dataclass(slots=True)
class _Stepped:
    """A `torch.optim` optimizer of the script, as this server runs it."""

    kind: str
    keys: list[int]
    torch_optimizer: Any


class DenseShard:
    """A `Part` with parameters, gradients and optimizers by key."""

    changes = frozenset(
        {
            Opcode.ADD_GRADIENTS,
            Opcode.SCALE_GRADIENTS,
            Opcode.STEP,
            Opcode.INIT,
            Opcode.PUSH,
            Opcode.ADD,
            Opcode.PUSH_STEP,
        }
    )
    reads = frozenset({Opcode.GRADIENTS, Opcode.OPTIMIZER_STATE, Opcode.PULL, Opcode.PULL_ROWS})

    def __init__(self) -> None:
        self._values: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, torch.Tensor] = {}
        self._optimizers: dict[int, _Stepped] = {}

    def combine(self, messages: Sequence[Message]) -> Answer:
        first = messages[0]
        match first.operation:
            case Opcode.ADD_GRADIENTS:
                check_same(messages, "keys", "sizes", "dtype", "fresh")
                added = read_form(AddGradients, first.meta)
                for message in messages:
                    check_parts(
                        added, message.arrays, self._gradients, adds=True, floating=True, fresh=added.fresh
                    )
                return fields_of(added), [array_of(_sum(messages).div_(len(messages)))]
            case Opcode.PUSH | Opcode.ADD | Opcode.INIT:
                check_same(messages, "keys", "sizes", "dtype")
                values = read_form(Values, first.meta)
                for message in messages:
                    check_parts(values, message.arrays, self._values, adds=first.operation is Opcode.ADD)
                counted = messages[:1] if first.operation is Opcode.INIT else messages
                # A single worker's array is not changed before the answer, so it need not be copied.
                alone = len(counted) == 1
                return fields_of(values), [counted[0].arrays[0] if alone else array_of(_sum(counted))]
            case Opcode.PUSH_STEP:
                check_same(messages, "keys", "sizes", "dtype", "optimizer", "class", "options")
                push = read_form(PushStep, first.meta)
                for message in messages:
                    check_push_step(push, message.arrays, self._values)
                return fields_of(push), [array_of(_sum(messages))]
            case Opcode.STEP:
                step, arrays = _joined(messages)
                cut = len(step.values)
                check_step(step, self._values, self._gradients, arrays[:cut], arrays[cut:])
                return fields_of(step), arrays
            case _:
                check_same(messages, "keys")
                scale = read_form(ScaleGradients, first.meta)
                check_scale(scale, self._gradients)
                return fields_of(scale), []

    def apply(self, record: Record) -> None:
        match record.operation:
            case Opcode.ADD_GRADIENTS:
                self._add(record.meta, record.arrays[0])
            case Opcode.INIT | Opcode.PUSH | Opcode.ADD:
                self._write(record)
            case Opcode.PUSH_STEP:
                self._push_step(record.meta, record.arrays[0])
            case Opcode.SCALE_GRADIENTS:
                for key in record.meta["keys"]:
                    self._gradients[key].mul_(float(record.meta["factor"]))
            case _:
                self._step(record.meta, record.arrays)

    def answer(self, message: Message) -> Answer:
        match message.operation:
            case Opcode.STEP:
                keys = [key for group in message.meta["groups"] for key in group["keys"]]
            case _ if message.operation in _PUSHES and message.meta.get("pull"):
                keys = message.meta["keys"]
            case _:
                return {}, []
        return _told(self._values, keys)

    def read(self, message: Message) -> Answer:
        if message.operation in (Opcode.GRADIENTS, Opcode.PULL):
            home = self._gradients if message.operation is Opcode.GRADIENTS else self._values
            return _told(home, message.meta["keys"])
        if message.operation is Opcode.PULL_ROWS:
            asked = read_form(PullRows, message.meta)
            rows, numbers = check_rows(asked, message.arrays, self._values)
            return {}, [array_of(rows.index_select(0, numbers))]
        stepped = self._optimizers[message.meta["optimizer"]]
        entries: list[list[Any]] = []
        arrays: list[Array] = []
        self._tell_state(stepped, message.meta["keys"], entries, arrays)
        return {"entries": entries}, arrays

    def freeze(self) -> None:
        """No-op: the state is in memory, which a fork copies."""

    def thaw(self) -> None:
        """No-op: `freeze` keeps nothing."""

    def state(self) -> Answer:
        entries: list[list[Any]] = []
        arrays: list[Array] = []
        for name, tensors in (("value", self._values), ("gradient", self._gradients)):
            for key, tensor in tensors.items():
                _tell(key, name, tensor, entries, arrays)
        optimizers: list[dict[str, Any]] = []
        for number, stepped in self._optimizers.items():
            told: list[list[Any]] = []
            self._tell_state(stepped, stepped.keys, told, arrays)
            optimizers.append({"number": number, "kind": stepped.kind, "keys": stepped.keys, "entries": told})
        return {"entries": entries, "optimizers": optimizers}, arrays

    def load(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        self.__init__()
        left = iter(arrays)
        homes = {"value": self._values, "gradient": self._gradients}
        for key, name, dtype, _ in meta["entries"]:
            homes[name][key] = tensor_of(next(left), DTYPES[dtype])
        for each in meta["optimizers"]:
            stepped = self._stepped(each["number"], each["kind"], each["keys"])
            self._give_state(stepped, each["entries"], left)

    def _write(self, record: Record) -> None:
        """Set missing values (INIT), overwrite values (PUSH), or add to values (ADD)."""
        meta = record.meta
        came = tensor_view(record.arrays[0], DTYPES[meta["dtype"]])
        for key, part in zip(meta["keys"], came.split(meta["sizes"]), strict=True):
            held = self._values.get(key)
            other = held is None or held.numel() != part.numel() or held.dtype != part.dtype
            if held is None or (other and record.operation is Opcode.PUSH):
                self._values[key] = part.clone()
            elif record.operation is Opcode.PUSH:
                held.copy_(part)
            elif record.operation is Opcode.ADD:
                held.add_(part)

    def _add(self, meta: dict[str, Any], array: Array) -> None:
        mean = tensor_of(array, DTYPES[meta["dtype"]])
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
    def _push_step(self, meta: dict[str, Any], array: Array) -> None:
        """Make an optimizer step with the summed gradients of the workers."""
        keys = meta["keys"]
        stepped = self._stepped(meta["optimizer"], meta["class"], keys)
        gradients = tensor_of(array, DTYPES[meta["dtype"]]).split(meta["sizes"])
        groups = [{"keys": keys, "options": meta["options"]}]
        self._make_step(stepped, groups, dict(zip(keys, gradients, strict=True)))

    def _step(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        left = iter(arrays)
        for key, name, dtype, _ in meta["values"]:
            value = tensor_of(next(left), DTYPES[dtype])
            if name == "value":
                held = self._values.get(key)
                if held is None or held.numel() != value.numel() or held.dtype != value.dtype:
                    self._values[key] = value
                else:
                    held.copy_(value)  # in place: the tensor is the key of the optimizer's state
            else:
                self._gradients[key] = value
        keys = [key for group in meta["groups"] for key in group["keys"]]
        stepped = self._stepped(meta["optimizer"], meta["class"], keys)
        if meta["anew"]:
            stepped.torch_optimizer.state.clear()
        self._give_state(stepped, meta["state"], left)
        with _default_dtype(DTYPES[meta["default"]]):
            self._make_step(stepped, meta["groups"], {key: self._gradients[key] for key in keys})

    @torch.no_grad()
    def _make_step(
        self, stepped: _Stepped, groups: Sequence[dict[str, Any]], gradients: Mapping[int, torch.Tensor]
    ) -> None:
        self._take_groups(stepped, groups)
        for key, gradient in gradients.items():
            self._values[key].grad = gradient
        stepped.torch_optimizer.step()
        for key in gradients:
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
        """Give the server's optimizer the current parameters and hyper-parameters of the script's."""
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

    def _tell_state(
        self, stepped: _Stepped, keys: Iterable[int], entries: list[list[Any]], arrays: list[Array]
    ) -> None:
        for key in keys:
            for name, value in stepped.torch_optimizer.state.get(self._values[key], {}).items():
                _tell(key, name, value, entries, arrays)

    def _give_state(self, stepped: _Stepped, entries: Iterable[list[Any]], arrays: Any) -> None:
        for key, name, dtype, scalar in entries:
            state = stepped.torch_optimizer.state[self._values[key]]
            if dtype is None:
                state[name] = scalar
            elif scalar is None:
                state[name] = tensor_of(next(arrays), DTYPES[dtype])
            else:
                state[name] = torch.tensor(scalar, dtype=DTYPES[dtype])


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _sum(messages: Sequence[Message]) -> torch.Tensor:
    """Sum the workers' arrays in rank order. `combine` has validated the messages."""
    first = messages[0]
    dtype = DTYPES[first.meta["dtype"]]
    summed = tensor_of(first.arrays[0], dtype)
    for message in messages[1:]:
        summed.add_(tensor_view(message.arrays[0], dtype))
    return summed


def _joined(messages: Sequence[Message]) -> tuple[StepRecord, list[Array]]:
    """Merge all workers' messages for one step.

    Each worker sends a share of the values and state that the servers lack.
    """
    first = read_form(Step, messages[0].meta)
    merged = StepRecord(
        optimizer=first.optimizer,
        kind=first.kind,
        groups=first.groups,
        anew=first.anew,
        default=first.default,
        values=[],
        state=[],
    )
    of_values: list[Array] = []
    of_state: list[Array] = []
    for message in messages:
        step = read_form(Step, message.meta)
        if step.groups != first.groups:
            raise ValueError(
                f"worker {message.worker} steps with other hyper-parameters or parameters [R426]"
            )
        arrays = iter(message.arrays)
        for key, name, dtype, size in step.values:
            array = next(arrays)
            if array.nbytes != size * DTYPES[dtype].itemsize:
                raise ValueError(f"key {key} has other elements than it says [R430]")
            merged.values.append((key, name, dtype, None))
            of_values.append(array)
        for entry in step.state:
            _, _, dtype, scalar = entry
            merged.state.append(entry)
            if dtype is not None and scalar is None:
                of_state.append(next(arrays))
    return merged, [*of_values, *of_state]


def _told(home: dict[int, torch.Tensor], keys: Sequence[int]) -> Answer:
    """Return the tensors of `keys` as arrays, concatenated by dtype."""
    found = [home[key] for key in keys]
    check_answer(found)
    return {}, [array_of(flat) for flat in _laid_out(found)]


def _laid_out(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Concatenate tensors by dtype, in the order in which the dtypes first occur."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    return [each[0] if len(each) == 1 else torch.cat(each) for each in by_dtype.values()]


def _tell(key: int, name: str, value: Any, entries: list[list[Any]], arrays: list[Array]) -> None:
    """Append a state entry `[key, name, dtype or None, scalar or None]`.

    A tensor with axes is appended to `arrays`.
    """
    if not isinstance(value, torch.Tensor):
        entries.append([key, name, None, value])
    elif not value.dim():
        entries.append([key, name, name_of(value.dtype), value.item()])
    else:
        entries.append([key, name, name_of(value.dtype), None])
        arrays.append(array_of(value))
