"""Current line of the user's script, found by walking up the stack."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType

__all__ = ["RONDE", "ScriptLine", "is_library"]

RONDE = str(Path(__file__).resolve().parents[1]) + os.sep
_INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library(path: str) -> bool:
    """Return whether a file is ronde's, the interpreter's, or installed.

    `path` is absolute.
    """
    return path.startswith((RONDE, *_INSTALLED)) or any(folder in path for folder in _PACKAGES)


class ScriptLine:
    """Names of lines as `file:line`; remembers which files are libraries.

    Args:
        libraries: folders of library files, besides ronde, the standard library and packages in
            site-packages.
        passes_over: whether the file at this absolute path is another library file; asked once for each file.
    """

    def __init__(self, *libraries: str, passes_over: Callable[[str], bool] | None = None) -> None:
        self._passes_over = passes_over
        self._libraries = tuple(os.path.join(folder, "") for folder in libraries)
        self._names: dict[str, str | None] = {}
        self._last = "the start of the script"

    def nearest(self, frame: FrameType | None) -> str:
        """Return the innermost script line at or above `frame`.

        On a thread without one, the last line found.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            try:
                name = self._names[file]
            except KeyError:
                name = self._names[file] = self.name(file)
            if name is not None:
                self._last = f"{name}:{frame.f_lineno}"
                break
            frame = frame.f_back
        return self._last

    def name(self, file: str) -> str | None:
        """Return the user's name of this file; None for a library's."""
        if file.startswith("<"):
            return None
        path = os.path.abspath(file)
        if path.startswith(self._libraries) or is_library(path):
            return None
        if self._passes_over is not None and self._passes_over(path):
            return None
        here = os.path.join(os.getcwd(), "")
        return path[len(here) :] if path.startswith(here) else path
