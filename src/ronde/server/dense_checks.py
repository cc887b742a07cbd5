"""Validation of requests about dense parameters, before they are written to the log.

A logged change is applied now and after every restart. An invalid one must therefore be rejected here, from
the message and the present values alone. Invalid requests raise `ValueError` or `KeyError`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ronde.server.array_codec import Array
from ronde.server.transport.wire import Message, Opcode

__all__ = [
    "DTYPES",
    "STEPPED",
    "check_answer",
    "check_parts",
    "check_push_step",
    "check_rows",
    "check_same",
    "check_scale",
    "check_step",
    "name_of",
]

STEPPED = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "ASGD", "Rprop",
)  # fmt: skip
"""Classes of `torch.optim` that a server runs: element-wise optimizers."""

Values = Mapping[int, torch.Tensor]

_LARGEST_KEY = 1 << 63
_LARGEST_SIZE = 1 << 48
# Limit of an answer, in elements. Only a request that repeats a key exceeds it.
_MOST_ELEMENTS = 1 << 31
_NUMPY = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(np.uint8),  # raw bytes
    torch.int64: np.dtype(np.int64),
    torch.int32: np.dtype(np.int32),
    torch.int8: np.dtype(np.int8),
    torch.uint8: np.dtype(np.uint8),
}


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype on the wire, without "torch."."""
    return str(dtype).removeprefix("torch.")


DTYPES = {name_of(dtype): dtype for dtype in _NUMPY}
"""Dtypes of values on servers, by name."""


def _dtype_of(name: Any) -> torch.dtype:
    """Return the dtype of this name, if servers support it."""
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ValueError(f"there is no dtype {str(name)[:32]} on servers [R430]")
    return dtype


def _keys_of(meta: Mapping[str, Any]) -> list[int]:
    """Return the keys of a request: distinct non-negative integers."""
    keys = meta["keys"]
    if not isinstance(keys, list) or not all(type(key) is int and 0 <= key < _LARGEST_KEY for key in keys):
        raise ValueError("keys are a list of whole numbers [R430]")
    if len(set(keys)) < len(keys):
        raise ValueError("a key comes twice [R430]")
    return keys


def check_parts(message: Message, held: Values, *, adds: bool, floating: bool = False) -> None:
    """Check values of several keys that are concatenated in one array.

    Args:
        held: the present values, by key.
        adds: whether values are added to present ones, which must match unless the key is `fresh`.
        floating: whether the dtype must be floating-point, as for gradients.
    """
    meta = message.meta
    keys, sizes = _keys_of(meta), meta["sizes"]
    dtype = _dtype_of(meta["dtype"])
    if (
        not isinstance(sizes, list)
        or len(sizes) != len(keys)
        or not all(type(size) is int and 0 <= size < _LARGEST_SIZE for size in sizes)
    ):
        raise ValueError("there is a size for each key [R430]")
    if len(message.arrays) != 1:
        raise ValueError("values of all keys come in one array [R430]")
    _check_array(message.arrays[0], sum(sizes), dtype)
    if floating and not dtype.is_floating_point:
        raise ValueError(f"gradients are floats, not {meta['dtype']}")
    fresh = meta["fresh"] if message.operation is Opcode.ADD_GRADIENTS else [0] * len(keys)
    if not isinstance(fresh, list) or len(fresh) != len(keys):
        raise ValueError("there is a word for each key whether it is fresh [R430]")
    for key, size, anew in zip(keys, sizes, fresh, strict=True):
        there = held.get(key)
        if adds and not anew and there is not None and (there.numel() != size or there.dtype != dtype):
            raise ValueError(
                f"{size} elements of {meta['dtype']} for key {key}, which has "
                f"{there.numel()} of {there.dtype} [R430]"
            )


def check_push_step(message: Message, values: Values) -> None:
    """Check pushed gradients of existing values, and the optimizer for them."""
    meta = message.meta
    _all_there(_keys_of(meta), values)
    check_parts(message, values, adds=True, floating=True)
    if type(meta["optimizer"]) is not int or meta["class"] not in STEPPED:
        raise ValueError("an optimizer has a whole number, and a class that servers know [R430]")
    _options_of(meta["class"], meta["options"])


def check_same(messages: Sequence[Message], *names: str) -> None:
    """Check that all workers sent the same values under these names."""
    first = messages[0].meta
    for message in messages[1:]:
        for name in names:
            if message.meta.get(name) != first.get(name):
                raise ValueError(
                    f"worker {message.worker} says other {name} than worker {messages[0].worker} [R430]"
                )


def check_scale(meta: Mapping[str, Any], gradients: Values) -> None:
    """Check a factor for the gradients of some keys."""
    if type(meta["factor"]) not in (int, float):
        raise ValueError("a factor is a number [R430]")
    float(meta["factor"])
    _all_there(_keys_of(meta), gradients)


def check_step(
    meta: Mapping[str, Any],
    values: Values,
    gradients: Values,
    sent: Sequence[Array],
    of_state: Sequence[Array],
) -> None:
    """Check a step of an optimizer, merged from all workers' messages by `dense._joined`.

    Args:
        values, gradients: the present tensors, by key.
        sent, of_state: the arrays of `meta["values"]`, and of the entries of `meta["state"]` that have one.
    """
    if not _dtype_of(meta["default"]).is_floating_point:
        raise ValueError("steps are counted in a floating-point type [R430]")
    if type(meta["optimizer"]) is not int or type(meta["anew"]) not in (bool, int):
        raise ValueError("an optimizer is known by a whole number, and begins anew or not [R430]")
    sizes = {key: (value.numel(), value.dtype) for key, value in values.items()}
    of_gradients = {key: (value.numel(), value.dtype) for key, value in gradients.items()}
    for (key, name, dtype, _), array in zip(meta["values"], sent, strict=True):
        kind = _dtype_of(dtype)
        _check_array(array, array.nbytes // kind.itemsize, kind)
        home = sizes if name == "value" else of_gradients
        home[_keys_of({"keys": [key]})[0]] = (array.nbytes // kind.itemsize, kind)
    keys: list[int] = []
    needed: dict[str, int] = {}
    for group in meta["groups"]:
        own = _keys_of(group)
        keys += own
        if own:
            needed = _options_of(meta["class"], group["options"])
    if len(set(keys)) < len(keys):
        raise ValueError("a key comes in two groups [R430]")
    for key in keys:
        if sizes[key] != of_gradients[key] or not sizes[key][1].is_floating_point:
            raise ValueError(f"key {key} has {sizes[key]}, its gradient {of_gradients[key]}")
    _check_state(meta["state"], sizes, needed, of_state, optional=meta["class"] == "SGD")


def _check_state(
    entries: Sequence[Sequence[Any]],
    sizes: Mapping[int, tuple[int, Any]],
    needed: Mapping[str, int],
    sent: Sequence[Array],
    *,
    optional: bool,
) -> None:
    """Check the state entries with which an optimizer continues.

    Args:
        needed: the names of required entries, each with its number of axes for a 1-d parameter.
        optional: whether entries may be missing.
    """
    left = iter(sent)
    found: dict[int, set[str]] = {}
    for key, name, dtype, scalar in entries:
        if type(key) is not int or not isinstance(name, str):
            raise ValueError("an entry of state has a key and a name [R430]")
        given = found.setdefault(key, set())
        if dtype is not None or scalar is not None:
            given.add(name)
        count, _ = sizes[key]
        if scalar is not None and type(scalar) not in (bool, int, float):
            raise ValueError("an entry of state is a number, or an array [R430]")
        if name in given and name in needed and (dtype is None or needed[name] != int(scalar is None)):
            raise ValueError("an entry of state is a number, or an array [R430]")
        if dtype is not None:
            kind = _dtype_of(dtype)
            if scalar is None:
                _check_array(next(left), count, kind)
            else:
                torch.tensor(scalar, dtype=kind)
    for key, names in found.items():
        if not (optional or needed.keys() <= names):
            raise ValueError(
                f"the state of key {key} lacks {', '.join(sorted(needed.keys() - names))} [R430]"
            )


def _options_of(kind: str, options: Any) -> dict[str, int]:
    """Check hyper-parameters of an optimizer by two steps on one element.

    Returns:
        the names of the tensors in such an optimizer's state, with the number of axes of each.
    """
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ValueError("hyper-parameters are an object")
    return _tried(str(kind), tuple((name, _shape_of(value)) for name, value in options.items()))


@functools.lru_cache(256)
def _tried(kind: str, shapes: tuple[tuple[str, Any], ...]) -> dict[str, int]:
    """Return the state tensors' axes after two trial steps.

    Cached by value types: whether a step is valid depends on types, not on values.
    """
    element = torch.zeros(1, requires_grad=True)
    made = getattr(torch.optim, kind)([element], lr=0.0)
    element.grad = torch.zeros(1)
    made.param_groups[0].update({name: _value_of(shape) for name, shape in shapes})
    try:
        made.step()
        made.step()  # the second step uses state that the first one made, such as a momentum
    except Exception as error:
        raise ValueError(f"{kind} does not take these hyper-parameters: {error} [R430]") from None
    kept = made.state[element].items()
    return {name: value.dim() for name, value in kept if isinstance(value, torch.Tensor)}


def _shape_of(value: Any) -> Any:
    if isinstance(value, list):
        return ("list", tuple(_shape_of(each) for each in value))
    if value is None or isinstance(value, (bool, str)):
        return ("is", value)
    if isinstance(value, int) and abs(value) >= _LARGEST_KEY:
        raise ValueError("a hyper-parameter is too large [R430]")
    if isinstance(value, (int, float)):
        return ("number", type(value) is int)
    raise ValueError("a hyper-parameter is a number, a word, or a list of such [R430]")


def _value_of(shape: Any) -> Any:
    match shape:
        case ("list", members):
            return tuple(_value_of(each) for each in members)
        case ("is", value):
            return value
        case _:
            return 1 if shape[1] else 0.5


def check_rows(message: Message, values: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one key's value as [rows, dim], and the requested row indices."""
    (key,) = _keys_of(message.meta)
    dim = message.meta["dim"]
    (rows,) = message.arrays
    value = values[key]
    if type(dim) is not int or dim < 1 or value.numel() % dim:
        raise ValueError(f"{value.numel()} elements are not rows of {str(dim)[:20]} [R430]")
    if rows.dtype != np.int64 or rows.ndim != 1:
        raise ValueError("rows are numbered by int64 of one axis [R430]")
    shaped = value.view(-1, dim)
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(shaped)):
        raise ValueError(f"there are {len(shaped)} rows")
    if len(rows) * dim > _MOST_ELEMENTS:
        raise ValueError("so many rows are too many for an answer [R430]")
    return shaped, torch.from_numpy(np.array(rows))


def check_answer(tensors: Sequence[torch.Tensor]) -> None:
    """Check that an answer has at most `_MOST_ELEMENTS` elements."""
    if sum(each.numel() for each in tensors) > _MOST_ELEMENTS:
        raise ValueError("so many elements are too many for an answer [R430]")


def _check_array(array: Array, numel: int, dtype: torch.dtype) -> None:
    if array.nbytes != numel * dtype.itemsize or array.dtype != _NUMPY[dtype]:
        raise ValueError(f"{array.nbytes} bytes of {array.dtype} are not {numel} elements of {dtype} [R430]")


def _all_there(keys: Sequence[int], held: Values) -> None:
    for key in keys:
        if key not in held:
            raise KeyError(f"there is nothing by key {key} [R430]")
