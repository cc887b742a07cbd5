"""An attribute of all tensors that reads and writes otherwise than torch's own.

Not a `property`: to torch's compiler one that has a `__get__` in C is torch's (an error in 2.11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["TensorAttribute"]


class TensorAttribute:
    """What stands in place of an attribute of `torch.Tensor`.

    Args:
        native: torch's own descriptor, for what is not given.
    """

    __slots__ = ("_delete", "_read", "_write")

    def __init__(
        self,
        native: Any,
        *,
        read: Callable[[Any], Any] | None = None,
        write: Callable[[Any, Any], None] | None = None,
        delete: Callable[[Any], None] | None = None,
    ) -> None:
        self._read = read or native.__get__
        self._write = write or native.__set__
        self._delete = delete or native.__delete__

    def __get__(self, tensor: Any, _kind: type | None = None) -> Any:
        return self if tensor is None else self._read(tensor)

    def __set__(self, tensor: Any, value: Any) -> None:
        self._write(tensor, value)

    def __delete__(self, tensor: Any) -> None:
        self._delete(tensor)
