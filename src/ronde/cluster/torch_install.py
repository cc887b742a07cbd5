"""Whether there is a torch that ronde can use, found without importing it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from ronde.errors import LaunchError

__all__ = ["check_torch", "torch_version_file"]

LEAST = (2, 11)


def torch_version_file() -> str:
    """The text of the file in which torch tells its version; "" without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        return Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return ""


def check_torch() -> None:
    """Raise LaunchError without torch, or with one that is too old."""
    least = ".".join(map(str, LEAST))
    if importlib.util.find_spec("torch") is None:
        raise LaunchError(
            f"torch is not installed for {sys.executable}; install it there: "
            f"{sys.executable} -m pip install 'torch>={least}'"
        )
    found = re.search(
        r"^__version__\b[^=\n]*=\s*['\"]((\d+)\.(\d+)[^'\"]*)", torch_version_file(), re.MULTILINE
    )
    if found and (int(found[2]), int(found[3])) < LEAST:
        raise LaunchError(
            f"torch {found[1]} is too old, ronde needs {least} or newer; install it: "
            f"{sys.executable} -m pip install --upgrade 'torch>={least}'"
        )
