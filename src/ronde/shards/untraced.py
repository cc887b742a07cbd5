"""Suspension of `torch.jit.trace` during ronde's own memory operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ronde.patching.torch_internals import get_tracing_state, set_tracing_state

__all__ = ["untraced"]


@contextmanager
def untraced() -> Iterator[None]:
    """Suspend recording inside the `with` block."""
    state = get_tracing_state()
    if state is None:
        yield
        return
    set_tracing_state(None)
    try:
        yield
    finally:
        set_tracing_state(state)
