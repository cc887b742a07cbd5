"""Origin of code: the user's own, a library's, or the interpreter's."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import FrameType, FunctionType, ModuleType
from typing import Any

from ronde.trace.script_line import RONDE, is_library

__all__ = [
    "call_site",
    "called_by_script",
    "file_of",
    "is_script",
    "is_standard",
    "is_users",
    "is_users_module",
]


_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


@functools.cache  # called for every reading of the clock, so it must be cheap
def is_script(filename: str) -> bool:
    """Return whether code of this file is the user's own.

    Such code is not installed, and belongs neither to the interpreter nor to ronde.
    """
    if filename.startswith("<"):  # a notebook's or `exec`'s code has no file
        return not filename.startswith("<frozen")
    return not is_library(os.path.abspath(filename))


def is_users(code: Any) -> bool:
    """Return whether the user wrote a function, class or code object."""
    if isinstance(code, type):
        return _is_users_class(code)
    code = getattr(code, "__code__", code)
    return is_script(getattr(code, "co_filename", "<frozen"))


@functools.lru_cache(maxsize=4096)
def _is_users_class(kind: type) -> bool:
    """Return whether the user wrote a class, by its file or methods.

    Classes without methods, as for settings, are judged by their file alone.
    """
    module = sys.modules.get(kind.__module__)
    if module is not None and is_users_module(module):
        return True
    return any(is_users(item) for item in vars(kind).values() if isinstance(item, FunctionType))


def is_users_module(module: ModuleType) -> bool:
    # `torch.ops` and its like, of a class of their own, name a file that does not exist.
    if type(module) is not ModuleType:
        return False
    # A folder without an `__init__.py` is a package, too.
    path = file_of(module) or next(iter(vars(module).get("__path__", ())), None)
    return is_script(str(path or "<frozen"))


def file_of(module: object) -> str:
    """Return the file of an entry of `sys.modules`, "" without one.

    Only its dictionary is read: a lazy module would be imported by any other question.
    """
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else ""


def is_standard(filename: str) -> bool:
    """Return whether code of this file belongs to the interpreter, or to ronde."""
    return filename.startswith((RONDE, *_STANDARD, "<frozen")) and not any(
        folder in filename for folder in ("site-packages", "dist-packages")
    )


def called_by_script(*through: str, or_by: tuple[str, ...] = (), above: int = 0) -> bool:
    """Return whether the function that asks was called by the user's code.

    Args:
        through: names of modules whose frames are skipped; an empty one means code without a module.
        or_by: names of modules and packages that count as the user's code.
        above: the number of callers to skip above the one that asks.
    """
    frame: FrameType | None = sys._getframe(2 + above)
    while frame is not None and through and frame.f_globals.get("__name__", "") in through:
        frame = frame.f_back
    if frame is None:
        return False
    return is_script(frame.f_code.co_filename) or (
        bool(or_by) and f"{frame.f_globals.get('__name__', '')}.".startswith(or_by)
    )


def call_site() -> str:
    """Return file and line of the nearest caller outside ronde."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(RONDE):
        frame = frame.f_back
    return "?" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
