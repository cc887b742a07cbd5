"""What ranks do together in the midst of a module's call comes as one operation to those that look on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, final, runtime_checkable

from ronde.patching.torch_internals import current_dispatch_modes, disable_current_modes

__all__ = ["Onlooker", "onlooker"]


@runtime_checkable
class Onlooker(Protocol):
    """Looks at each operation of a call, in which all ranks go the same way."""

    def unseen(self) -> AbstractContextManager[object]:
        """Inside, operations are none of the call's; all ranks come there together."""
        ...

    def as_one(self, name: str, given: Any, run: Callable[[], Any]) -> Any:
        """Carry out a function that keeps rows apart, whatever it consists of.

        Args:
            given: what it is given; its results lie as the first tensor of rows among this.
        """
        ...


@final
class _Nobody:
    """Nobody looks on."""

    def unseen(self) -> AbstractContextManager[object]:
        return disable_current_modes()

    def as_one(self, name: str, given: Any, run: Callable[[], Any]) -> Any:
        return run()


def onlooker() -> Onlooker:
    """The innermost mode that looks on, if any does."""
    modes = [mode for mode in current_dispatch_modes() if isinstance(mode, Onlooker)]
    return modes[-1] if modes else _Nobody()
