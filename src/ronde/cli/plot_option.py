"""The option --plot: what is refused before minutes of measuring or searching."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ronde.errors import UsageError

__all__ = ["check_drawable"]

_FORMATS = (".png", ".svg", ".pdf")


def check_drawable(path: Path) -> None:
    """Raise when no picture could be drawn to this file.

    Raises:
        UsageError: without matplotlib, or for a format that it would not know.
    """
    if path.suffix not in _FORMATS:
        raise UsageError(f"--plot {path} does not end in {', '.join(_FORMATS)}; name it so")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed: pip install 'ronde[plot]'")
