"""Validation of requests about dense parameters, before they are written to the log.

A logged change is applied now and after every restart. An invalid one must therefore be rejected here, from
the message and the present values alone. Invalid requests raise `ValueError` or `KeyError`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch

from ronde.server.array_codec import Array
from ronde.server.request_forms import (
    DtypeName,
    OptimizerName,
    PullRows,
    PushStep,
    ScaleGradients,
    StateEntry,
    StepRecord,
    Values,
)
from ronde.server.transport.wire import Message

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

STEPPED: tuple[str, ...] = get_args(OptimizerName)
"""Classes of `torch.optim` that a server runs: element-wise optimizers."""

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(DtypeName)}
"""Dtypes of values on servers, by name."""

Held = Mapping[int, torch.Tensor]

# Limit of an answer, in elements. Only a request that repeats a key exceeds it.
_MOST_ELEMENTS = 1 << 31
_LARGEST_NUMBER = 1 << 63


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype on the wire, without "torch."."""
    return str(dtype).removeprefix("torch.")


def check_parts(
    values: Values,
    arrays: Sequence[Array],
    held: Held,
    *,
    adds: bool,
    floating: bool = False,
    fresh: Sequence[int] | None = None,
) -> None:
    """Check values of several keys that are concatenated in one array.

    Args:
        held: the present values, by key.
        adds: whether values are added to present ones, which must match.
        floating: whether the dtype must be floating-point, as for gradients.
        fresh: whether the value of each key replaces the present one.
    """
    dtype = DTYPES[values.dtype]
    if len(arrays) != 1:
        raise ValueError("values of all keys come in one array [R430]")
    _check_array(arrays[0], sum(values.sizes), dtype)
    if floating and not dtype.is_floating_point:
        raise ValueError(f"gradients are floats, not {values.dtype}")
    for key, size, anew in zip(values.keys, values.sizes, fresh or [0] * len(values.keys), strict=True):
        there = held.get(key)
        if adds and not anew and there is not None and (there.numel() != size or there.dtype != dtype):
            raise ValueError(
                f"{size} elements of {values.dtype} for key {key}, which has "
                f"{there.numel()} of {there.dtype} [R430]"
            )


def check_push_step(push: PushStep, arrays: Sequence[Array], held: Held) -> None:
    """Check pushed gradients of existing values, and the optimizer for them."""
    _all_there(push.keys, held)
    check_parts(push, arrays, held, adds=True, floating=True)
    _options_of(push.kind, push.options)


def check_same(messages: Sequence[Message], *names: str) -> None:
    """Check that all workers sent the same values under these names."""
    first = messages[0].meta
    for message in messages[1:]:
        for name in names:
            if message.meta.get(name) != first.get(name):
                raise ValueError(
                    f"worker {message.worker} says other {name} than worker {messages[0].worker} [R430]"
                )


def check_scale(scale: ScaleGradients, gradients: Held) -> None:
    """Check that the gradients to be scaled are there."""
    _all_there(scale.keys, gradients)


def check_step(
    step: StepRecord, values: Held, gradients: Held, sent: Sequence[Array], of_state: Sequence[Array]
) -> None:
    """Check a step of an optimizer, merged from all workers' messages by `dense._joined`.

    Args:
        values, gradients: the present tensors, by key.
        sent, of_state: the arrays of `step.values`, and of the entries of `step.state` that have one.
    """
    if not DTYPES[step.default].is_floating_point:
        raise ValueError("steps are counted in a floating-point type [R430]")
    sizes = {key: (value.numel(), value.dtype) for key, value in values.items()}
    of_gradients = {key: (value.numel(), value.dtype) for key, value in gradients.items()}
    for (key, name, dtype, _), array in zip(step.values, sent, strict=True):
        kind = DTYPES[dtype]
        _check_array(array, array.nbytes // kind.itemsize, kind)
        home = sizes if name == "value" else of_gradients
        home[key] = (array.nbytes // kind.itemsize, kind)
    needed: dict[str, int] = {}
    for group in step.groups:
        if group.keys:
            needed = _options_of(step.kind, group.options)
        for key in group.keys:
            if sizes[key] != of_gradients[key] or not sizes[key][1].is_floating_point:
                raise ValueError(f"key {key} has {sizes[key]}, its gradient {of_gradients[key]}")
    _check_state(step.state, sizes, needed, of_state, optional=step.kind == "SGD")


def _check_state(
    entries: Sequence[StateEntry],
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
        given = found.setdefault(key, set())
        if dtype is not None or scalar is not None:
            given.add(name)
        count, _ = sizes[key]
        if name in given and name in needed and (dtype is None or needed[name] != int(scalar is None)):
            raise ValueError("an entry of state must be a number or an array [R430]")
        if dtype is not None:
            kind = DTYPES[dtype]
            if scalar is None:
                _check_array(next(left), count, kind)
            else:
                torch.tensor(scalar, dtype=kind)
    for key, names in found.items():
        if not (optional or needed.keys() <= names):
            raise ValueError(
                f"the state of key {key} lacks {', '.join(sorted(needed.keys() - names))} [R430]"
            )


def _options_of(kind: str, options: Mapping[str, Any]) -> dict[str, int]:
    """Check hyper-parameters of an optimizer by two steps on one element.

    Returns:
        the names of the tensors in such an optimizer's state, with the number of axes of each.
    """
    return _tried(kind, tuple((name, _shape_of(value)) for name, value in options.items()))


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
    if isinstance(value, int) and abs(value) >= _LARGEST_NUMBER:
        raise ValueError("a hyper-parameter is too large [R430]")
    if isinstance(value, (int, float)):
        return ("number", type(value) is int)
    raise ValueError("a hyper-parameter must be a number, a word, or a list of them [R430]")


def _value_of(shape: Any) -> Any:
    match shape:
        case ("list", members):
            return tuple(_value_of(each) for each in members)
        case ("is", value):
            return value
        case _:
            return 1 if shape[1] else 0.5


def check_rows(asked: PullRows, arrays: Sequence[Array], held: Held) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one key's value as [rows, dim], and the requested row indices."""
    (key,), (rows,), dim = asked.keys, arrays, asked.dim
    value = held[key]
    if value.numel() % dim:
        raise ValueError(f"{value.numel()} elements are not rows of {dim} [R430]")
    if rows.dtype != np.int64 or rows.ndim != 1:
        raise ValueError("row ids must be int64 with one axis [R430]")
    shaped = value.view(-1, dim)
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(shaped)):
        raise ValueError(f"the value has {len(shaped)} rows")
    if len(rows) * dim > _MOST_ELEMENTS:
        raise ValueError("the rows asked for are too many for one answer [R430]")
    return shaped, torch.from_numpy(np.array(rows))


def check_answer(tensors: Sequence[torch.Tensor]) -> None:
    """Check that an answer has at most `_MOST_ELEMENTS` elements."""
    if sum(each.numel() for each in tensors) > _MOST_ELEMENTS:
        raise ValueError("the elements asked for are too many for one answer [R430]")


def _check_array(array: Array, numel: int, dtype: torch.dtype) -> None:
    travels = "uint8" if dtype is torch.bfloat16 else name_of(dtype)  # numpy lacks bfloat16
    if array.nbytes != numel * dtype.itemsize or array.dtype != np.dtype(travels):
        raise ValueError(f"{array.nbytes} bytes of {array.dtype} are not {numel} elements of {dtype} [R430]")


def _all_there(keys: Sequence[int], held: Held) -> None:
    for key in keys:
        if key not in held:
            raise KeyError(f"the server has no value for key {key} [R430]")
