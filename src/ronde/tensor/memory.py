"""Identification of tensors that share memory."""

from __future__ import annotations

from typing import Any

__all__ = ["memory"]


def memory(value: Any) -> int | None:
    """Return the address of a tensor's storage; None for a tensor without memory."""
    try:
        return value.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None
