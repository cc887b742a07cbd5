"""Packs an exception as bytes, so that another rank can raise an equal one."""

from __future__ import annotations

import pickle

__all__ = ["pack_exception", "unpack_exception"]


def pack_exception(error: Exception) -> bytes:
    """Pack an exception for `unpack_exception`, without traceback, cause and context."""
    try:
        packed = pickle.dumps(error)
        if type(pickle.loads(packed)) is type(error):
            return packed
    except Exception:  # it cannot be pickled: a class made in a function, or arguments besides the message
        pass
    return pickle.dumps((_known_class(type(error)), str(error)))


def unpack_exception(packed: bytes) -> BaseException:
    """Return an exception of the same class and message.

    The nearest importable base class replaces a class that cannot be imported.
    """
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
