"""Keeps replaced functions of torch correct under torch function modes.

`torch.set_default_device`, `with torch.device(...)` and many a profiler are such modes. A function of torch
asks them before anything else, and has them call the function under its name, which is the replacement: that
would run twice, once around the mode and once inside of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ronde.patching.torch_internals import is_in_function_mode, pop_function_mode

__all__ = ["modes_first"]

_is_in_mode: Any = is_in_function_mode


def modes_first(
    replacement: Callable[..., Any], known_as: Callable[[], Callable[..., Any]] | None = None
) -> Callable[..., Any]:
    """Make `replacement` consult modes first, as torch's functions do.

    The innermost mode is off inside of it.

    Args:
        known_as: function that returns the function to show to modes, which calls the replacement; None for
            itself.
    """

    @functools.wraps(replacement)
    def asking(*args: Any, **kwargs: Any) -> Any:
        if not _is_in_mode():
            return replacement(*args, **kwargs)
        with pop_function_mode() as mode:
            return mode.__torch_function__(known_as() if known_as else asking, (), args, kwargs)

    return asking
