"""A replacement for an attribute of all tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ronde.patching.modes_first import modes_first

__all__ = ["TensorAttribute"]


class TensorAttribute(property):
    """Property that replaces an attribute of `torch.Tensor`.

    It has the class and the name of the replaced one, by which torch's compiler, and uninitialized
    parameters, recognise torch's own attributes.

    Args:
        native: torch's own descriptor, used for the accesses that are not replaced.
    """

    def __init__(
        self,
        native: Any,
        *,
        read: Callable[[Any], Any] | None = None,
        write: Callable[[Any, Any], None] | None = None,
        delete: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(
            modes_first(read, lambda: self.__get__) if read else native.__get__,
            modes_first(write, lambda: self.__set__) if write else native.__set__,
            modes_first(delete, lambda: self.__delete__) if delete else native.__delete__,
        )
        self.__objclass__ = native.__objclass__
        self.__name__ = native.__name__
