"""What ronde does to memory is no part of what `torch.jit.trace` records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ronde.patching.torch_internals import get_tracing_state, set_tracing_state

__all__ = ["untraced"]


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, nothing is recorded."""
    state = get_tracing_state()
    if state is None:
        yield
        return
    set_tracing_state(None)
    try:
        yield
    finally:
        set_tracing_state(state)
