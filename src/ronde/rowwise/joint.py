"""Interface by which collectives inside of a call appear as one operation to observers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, final, runtime_checkable

from ronde.patching.torch_internals import current_dispatch_modes, disable_current_modes

__all__ = ["Onlooker", "onlooker"]


@runtime_checkable
class Onlooker(Protocol):
    """A dispatch mode that observes each operation of a call."""

    def unseen(self) -> AbstractContextManager[object]:
        """Exclude operations inside the `with` block from the observed call. Collective."""
        ...

    def as_one(self, name: str, given: Any, run: Callable[[], Any]) -> Any:
        """Run a function that keeps rows apart as one operation, whatever it consists of.

        Args:
            given: arguments; results have the rows of the first tensor with rows among them.
        """
        ...


@final
class _Nobody:
    """The fallback without an observer."""

    def unseen(self) -> AbstractContextManager[object]:
        return disable_current_modes()

    def as_one(self, name: str, given: Any, run: Callable[[], Any]) -> Any:
        return run()


def onlooker() -> Onlooker:
    """Return the innermost observer, or a fallback."""
    modes = [mode for mode in current_dispatch_modes() if isinstance(mode, Onlooker)]
    return modes[-1] if modes else _Nobody()
