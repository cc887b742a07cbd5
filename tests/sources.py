"""Syntax trees of ronde's source files, which several tests read."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import ronde

SOURCE = Path(ronde.__file__).parent


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Return the tree of each file, in the order of their names; parsed once in a process."""
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
