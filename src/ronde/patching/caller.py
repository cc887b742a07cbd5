"""Whether a call comes from the user's own code, or from a library or the interpreter."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from types import FrameType

from ronde.trace.script_line import RONDE, is_library

__all__ = ["call_site", "called_by_script", "is_script", "is_standard"]


_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


class _Known:
    """Verdicts by file name: a question for every reading of the clock must cost nothing."""

    files: dict[str, bool] = {}  # noqa: RUF012 - a cache of pure answers


def is_script(filename: str) -> bool:
    """Whether code of this file is the user's: neither installed, nor the interpreter's, nor ronde's."""
    known = _Known.files.get(filename)
    if known is None:
        if filename.startswith("<"):  # what a notebook or `exec` runs has no file
            known = not filename.startswith("<frozen")
        else:
            known = not is_library(os.path.abspath(filename))
        _Known.files[filename] = known
    return known


def is_standard(filename: str) -> bool:
    """Whether code of this file belongs to the interpreter, or to ronde."""
    return filename.startswith((RONDE, *_STANDARD, "<frozen")) and not any(
        folder in filename for folder in ("site-packages", "dist-packages")
    )


def called_by_script(*through: str, or_by: tuple[str, ...] = (), above: int = 0) -> bool:
    """Whether the function that asks was called by the user's code.

    Args:
        through: names of modules whose frames may lie between; an empty one for code of none.
        or_by: names of modules and packages that count as the user's code.
        above: so many callers above the one that asks.
    """
    frame: FrameType | None = sys._getframe(2 + above)
    while frame is not None and through and frame.f_globals.get("__name__", "") in through:
        frame = frame.f_back
    if frame is None:
        return False
    return is_script(frame.f_code.co_filename) or (
        bool(or_by) and f"{frame.f_globals.get('__name__', '')}.".startswith(or_by)
    )


def call_site(own_file: Callable[[str], bool]) -> str:
    """File and line of the nearest caller outside ronde, the same on every rank.

    Args:
        own_file: whether a file is this rank's alone, with a name of its own; its callers are asked.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith(RONDE) or own_file(file)):
            break
        frame = frame.f_back
    return "?" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
