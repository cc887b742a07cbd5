"""Checks of --plot, before minutes of work."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ronde.errors import UsageError

__all__ = ["check_drawable"]

_FORMATS = (".png", ".svg", ".pdf")


def check_drawable(path: Path) -> None:
    """Raise if a picture cannot be drawn to this file.

    Raises:
        UsageError: matplotlib is missing, or it does not know the format.
    """
    if path.suffix not in _FORMATS:
        raise UsageError(f"--plot {path} does not end in {', '.join(_FORMATS)}; name it so [R850]")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed: pip install 'ronde[plot]' [R851]")
