"""Refusal of systems that ronde does not support."""

from __future__ import annotations

import sys

from ronde.errors import LaunchError

__all__ = ["check_linux"]


def check_linux() -> None:
    """Raise LaunchError on another system than Linux."""
    if not sys.platform.startswith("linux"):
        raise LaunchError(f"ronde runs on Linux only for now, not on {sys.platform} [R181]")
