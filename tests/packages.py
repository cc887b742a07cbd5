"""Which packages a script needs that are not here."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

__all__ = ["missing"]


def missing(script: Path) -> list[str]:
    """Packages that it imports and that are not installed, by name."""
    return [name for name in sorted(_imported(script)) if importlib.util.find_spec(name) is None]


def _imported(script: Path) -> set[str]:
    """Packages, other than torch and what comes with Python, that a script imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
            if node.module == "torch.utils.tensorboard":
                names.add("tensorboard")
    return {name for name in names if name not in sys.stdlib_module_names and name != "torch"}
