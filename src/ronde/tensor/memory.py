"""In which memory tensors lie."""

from __future__ import annotations

from typing import Any

__all__ = ["memory"]


def memory(value: Any) -> int | None:
    """What two tensors that share memory have in common; None for a tensor without any of its own."""
    try:
        return value.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None
