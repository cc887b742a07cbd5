"""Effect handlers of a probabilistic program (Pyro) record what a model samples, and see no observed call.

A model that does so while it is observed is refused, and the handlers see its one call, on the whole batch.
Pyro's protocol: a stack of messengers, each of which is given every message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ronde.rowwise.verdict import MixesRows

__all__ = ["effects_refused"]


class _Refusing:
    def _process_message(self, message: Any) -> None:
        raise MixesRows("it samples by Pyro, whose handlers are to see the whole batch, once")


@contextmanager
def effects_refused() -> Iterator[None]:
    """Nothing that is computed inside reaches the handlers around it.

    Raises:
        MixesRows: where something would have.
    """
    stack = getattr(sys.modules.get("pyro.poutine.runtime"), "_PYRO_STACK", None)
    if not stack:
        yield
        return
    before = list(stack)
    stack[:] = [_Refusing()]
    try:
        yield
    finally:
        stack[:] = before
