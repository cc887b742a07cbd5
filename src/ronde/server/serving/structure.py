"""Encoding of a model's outputs for the binary protocol: a JSON skeleton plus arrays.

An array becomes {"array": k} (with its "dtype" if the wire uses another one), a list {"list": [...]}, a tuple
{"tuple": [...]}, a dict {"dict": {...}}; numbers, strings and None are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ronde.server.array_codec import Array

__all__ = ["put_together", "take_apart", "travels_as"]

# dtypes that the wire lacks, each with one that holds all its values.
_TRAVELS_AS = {"bool": "uint8", "int16": "int32", "uint16": "int32"}
_KNOWN = ("uint8", "int8", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64")


def travels_as(array: Array) -> Array | None:
    """Convert an array to a dtype that the wire supports; None if impossible."""
    name = _TRAVELS_AS.get(array.dtype.name, array.dtype.name)
    if name not in _KNOWN:
        return None
    return np.ascontiguousarray(array, name).reshape(array.shape)


def take_apart(value: Any, array_of: Callable[[Any], Array | None], arrays: list[Array]) -> Any:
    """Return the skeleton of a value, and append its arrays.

    Args:
        array_of: function that converts a leaf to an array; None for a leaf that is not one.

    Raises:
        TypeError: an array has a dtype that the wire cannot hold, for instance complex.
    """
    array = array_of(value)
    if array is not None:
        sent = travels_as(array)
        if sent is None:
            raise TypeError(f"the dtype {array.dtype.name} cannot be sent [R748]")
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
    """Rebuild a value from its skeleton, with numpy arrays as leaves."""
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
