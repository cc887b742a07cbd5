"""An exception as bytes, so that another rank can raise one like it."""

from __future__ import annotations

import pickle

__all__ = ["pack_exception", "unpack_exception"]


def pack_exception(error: Exception) -> bytes:
    """What `unpack_exception` is given on another rank; without traceback, cause and context."""
    try:
        packed = pickle.dumps(error)
        if type(pickle.loads(packed)) is type(error):
            return packed
    except Exception:  # of its own: a class made in a function, other arguments than its message
        pass
    return pickle.dumps((_known_class(type(error)), str(error)))


def unpack_exception(packed: bytes) -> BaseException:
    """One of the same class and message; of the nearest base class that has a name, if its own has none."""
    found = pickle.loads(packed)
    if isinstance(found, BaseException):
        return found
    kind, said = found
    return kind.__new__(kind, said)


def _known_class(kind: type[BaseException]) -> type[BaseException]:
    for each in kind.__mro__:
        try:
            pickle.dumps(each)
        except Exception:
            continue
        return each
    return Exception
