"""Starts ranks on this host, and watches them to their end.

The room is callable: `ronde.launch(fn, ranks=2)` runs a function, see `ronde.launch.function`. Importing a
subpackage binds its name in the parent package, so a function `ronde.launch` beside the package would be
overwritten.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__: list[str] = []


class _Room(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from ronde.launch.function import launch

        return launch(*args, **kwargs)

    @property
    def __wrapped__(self) -> Any:
        """The function for `help` and `inspect.signature`."""
        from ronde.launch.function import launch

        return launch


sys.modules[__name__].__class__ = _Room
