"""Pickles of objects that no module has: a notebook's functions, classes and variables.

They are cloudpickle's, with three differences. Code keeps the name of its file or cell, so that tracebacks
have lines. Functions of a notebook share one dictionary of variables on either side. Tensors travel as bytes,
equal for equal contents, without a device. The room names no torch, so it is imported by `importlib`.
"""

from __future__ import annotations

import importlib
import io
import linecache
import os
import pickle
import sys
from collections.abc import Callable, Mapping, MutableMapping
from types import CodeType, FunctionType
from typing import IO, Any

__all__ = ["dump", "dumps", "learn_sources", "loads"]

_HOME = "home"
_UNNAMED = "<dynamic-code>"  # cloudpickle's file of all code


def dump(
    value: Any,
    file: IO[bytes],
    *,
    home: Mapping[str, Any] | None = None,
    known: Mapping[int, str] | None = None,
    takes_globals: bool = True,
    label: Callable[[str], str] = str,
    plain: Callable[[Any], Any] | None = None,
    see: Callable[[Any], object] | None = None,
) -> dict[str, str]:
    """Pickle `value`, and return the sources of its code that has no file.

    Args:
        home: variables of the notebook, which the reader replaces by its own.
        known: objects that the reader has, its variable by their id.
        takes_globals: whether functions bring the variables of `home` that they read.
        label: function that names the cell of a file.
        plain: function that makes of a tensor one that can be pickled.
        see: function that is called with every object on the way.

    Raises:
        Exception: the value, or a part of it, cannot be pickled; any class, because its code runs.
    """
    import cloudpickle

    sources: dict[str, str] = {}
    stand_in: dict[str, Any] = {"__name__": "__main__"}
    names = known or {}

    class ByValue(cloudpickle.Pickler):
        def persistent_id(self, value: Any) -> str | None:
            if see is not None:
                see(value)
            return _HOME if value is stand_in else names.get(id(value))

        def reducer_override(self, obj: Any) -> Any:  # the name that pickle calls
            if isinstance(obj, CodeType):
                return self._code(obj)
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(obj, torch.storage.TypedStorage):
                return _stored(obj)
            if torch is not None and plain is not None and isinstance(obj, torch.Tensor):
                made = plain(obj)
                return NotImplemented if made is obj else made.__reduce_ex__(self.proto)
            reduced: Any = super().reducer_override(obj)
            if isinstance(obj, FunctionType) and obj.__globals__ is home and not takes_globals:
                reduced[2][1]["__globals__"].clear()
            return reduced

        def _code(self, code: CodeType) -> Any:
            reduced: Any = self.dispatch_table[CodeType](code)
            make, parts = reduced
            name = label(code.co_filename)
            lines = linecache.cache.get(code.co_filename, ())
            if len(lines) == 4 and not os.path.exists(code.co_filename):
                sources[name] = "".join(lines[2])
            return make, tuple(name if part == _UNNAMED else part for part in parts)

    pickler = ByValue(file)
    if home is not None:
        pickler.globals_ref[id(home)] = stand_in
    pickler.dump(value)
    return sources


def dumps(value: Any, **options: Any) -> bytes:
    """Return a pickle of `dump`, without the sources of code."""
    file = io.BytesIO()
    dump(value, file, **options)
    return file.getvalue()


def loads(data: bytes, home: MutableMapping[str, Any]) -> Any:
    """Load a pickle of `dump`: `home` has the variables of functions, and what was known."""

    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return home if pid == _HOME else home[pid]

    return Reader(io.BytesIO(data)).load()


def learn_sources(sources: Mapping[str, str]) -> None:
    """Make the lines of code without a file known to tracebacks."""
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _stored(storage: Any) -> Any:
    """Reduce a storage to its bytes in host memory."""
    torch: Any = importlib.import_module("torch")
    memory = storage._untyped_storage  # the public name warns
    flat = torch.empty(0, dtype=torch.uint8).set_(memory.cpu())
    return _restored, (pickle.PickleBuffer(flat.numpy()), storage.dtype, memory.device.type)


def _restored(data: bytearray, dtype: Any, device: str) -> Any:
    """Make a storage of its bytes, on the same kind of device if possible."""
    torch: Any = importlib.import_module("torch")
    # Copied, because memory that is lent can be neither resized nor freed.
    flat = torch.frombuffer(data, dtype=torch.uint8).clone() if data else torch.empty(0, dtype=torch.uint8)
    if device == "cuda" and torch.cuda.is_available():
        flat = flat.cuda()
    return torch.storage.TypedStorage(wrap_storage=flat.untyped_storage(), dtype=dtype, _internal=True)
