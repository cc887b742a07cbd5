"""What ronde does to memory is no part of what `torch.jit.trace` records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["untraced"]

_current: Any = torch._C._get_tracing_state
_put: Any = torch._C._set_tracing_state  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, nothing is recorded."""
    state = _current()
    if state is None:
        yield
        return
    _put(None)
    try:
        yield
    finally:
        _put(state)
