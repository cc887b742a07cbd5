"""What a model returns, for the binary protocol: a JSON skeleton, and the arrays that hang in it.

An array stands as {"array": k} (with "dtype" where it travels as another one), a list as {"list": [...]}, a
tuple as {"tuple": [...]}, a dict as {"dict": {...}}; numbers, texts and None stand for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["put_together", "take_apart", "travels_as"]

Array = np.ndarray[Any, Any]

# Types that the wire does not know, by one that holds all their values.
_TRAVELS_AS = {"bool": "uint8", "int16": "int32", "uint16": "int32"}
_KNOWN = ("uint8", "int8", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64")


def travels_as(array: Array) -> Array | None:
    """The same values in a type that the wire knows; None for what holds no real numbers."""
    name = _TRAVELS_AS.get(array.dtype.name, array.dtype.name)
    if name not in _KNOWN:
        return None
    return np.ascontiguousarray(array, name).reshape(array.shape)


def take_apart(value: Any, array_of: Callable[[Any], Array | None], arrays: list[Array]) -> Any:
    """The skeleton of a value, whose arrays are appended.

    Args:
        array_of: the array that a leaf is; None for one that is none.

    Raises:
        TypeError: an array has no type that travels, complex numbers say.
    """
    array = array_of(value)
    if array is not None:
        sent = travels_as(array)
        if sent is None:
            raise TypeError(f"{array.dtype.name} does not travel")
        arrays.append(sent)
        told: dict[str, Any] = {"array": len(arrays) - 1}
        return told if sent.dtype == array.dtype else {**told, "dtype": array.dtype.name}
    if isinstance(value, Mapping):
        return {"dict": {str(key): take_apart(each, array_of, arrays) for key, each in value.items()}}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [take_apart(each, array_of, arrays) for each in value]}
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def put_together(told: Any, arrays: Sequence[Array]) -> Any:
    """What `take_apart` was given, with numpy arrays for leaves."""
    match told:
        case {"array": int(number)}:
            return arrays[number].astype(told.get("dtype", arrays[number].dtype))
        case {"dict": dict(entries)}:
            return {key: put_together(each, arrays) for key, each in entries.items()}
        case {"list": list(entries)}:
            return [put_together(each, arrays) for each in entries]
        case {"tuple": list(entries)}:
            return tuple(put_together(each, arrays) for each in entries)
        case _:
            return told
