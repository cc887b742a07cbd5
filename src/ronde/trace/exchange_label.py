"""Labels of tensor exchanges on a board: `all_reduce of float32 [3]`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ExchangeLabel"]


class ExchangeLabel(NamedTuple):
    """Operation, with dtype and shape of the tensor that it exchanges."""

    operation: str
    tensor: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.tensor}"

    @classmethod
    def parse(cls, text: str) -> ExchangeLabel | None:
        """Invert `str`; return None if the text names no exchange of a tensor."""
        operation, _, tensor = text.partition(" of ")
        return cls(operation, tensor) if tensor.endswith("]") and " " not in operation else None
