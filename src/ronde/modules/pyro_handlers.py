"""Effect handlers of a probabilistic program (Pyro): hidden from observed calls.

They record the samples of a model. A model that samples while it is observed is refused, and the handlers see
its one call, on the whole batch. Pyro's protocol: a stack of messengers, each of which is given every
message.
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
        raise MixesRows("it samples by Pyro, whose handlers must see the whole batch once [R351]")


@contextmanager
def effects_refused() -> Iterator[None]:
    """Hide the inside of the block from the handlers around it.

    Raises:
        MixesRows: a message would have reached them.
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
