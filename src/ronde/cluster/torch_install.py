"""Finds the installed torch without importing it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from ronde.errors import LaunchError

__all__ = ["check_torch", "newer_than_tried", "torch_version", "torch_version_file"]

LEAST = (2, 11)
# ronde uses many private functions of torch, so another minor version may break it.
NEWEST_TRIED = (2, 15)


def torch_version_file() -> str:
    """Return the text of torch's version file; "" without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        return Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return ""


def torch_version() -> str:
    """Return the version of the installed torch; "" if torch is not installed."""
    return _version()[0]


def check_torch() -> None:
    """Raise LaunchError without torch, or with one that is too old."""
    least = ".".join(map(str, LEAST))
    if importlib.util.find_spec("torch") is None:
        raise LaunchError(
            f"torch is not installed for {sys.executable}; install it there: "
            f"{sys.executable} -m pip install 'torch>={least}' [R185]"
        )
    name, version = _version()
    if name and version < LEAST:
        raise LaunchError(
            f"torch {name} is too old, ronde needs {least} or newer; install it: "
            f"{sys.executable} -m pip install --upgrade 'torch>={least}' [R185]"
        )


def newer_than_tried() -> str | None:
    """Return a warning for a torch that has not been tried with ronde."""
    name, version = _version()
    if not name or version <= NEWEST_TRIED:
        return None
    major, minor = NEWEST_TRIED
    newest, untried = f"{major}.{minor}", f"{major}.{minor + 1}"
    return (
        f"torch {name} is newer than {newest}, the newest that this version of ronde was tested with; if a "
        f"run fails, install that one: {sys.executable} -m pip install 'torch<{untried}' [R185]"
    )


def _version() -> tuple[str, tuple[int, int]]:
    """Return the version's name, "" without torch, and its first two numbers."""
    found = re.search(
        r"^__version__\b[^=\n]*=\s*['\"]((\d+)\.(\d+)[^'\"]*)", torch_version_file(), re.MULTILINE
    )
    return (found[1], (int(found[2]), int(found[3]))) if found else ("", (0, 0))
