"""Comparison of a script with that of its checkpoint: text and arguments.

Its imports and its data are not compared.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from ronde.trace.checkpoint_manifest import CheckpointManifest

__all__ = ["changes_since", "script_digest"]


def script_digest(script: str, *, module: bool) -> str:
    """Return the SHA-256 of a script's text; "" without a file."""
    path = _file_of(script) if module else script
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""


def changes_since(manifest: CheckpointManifest, digest: str, arguments: Sequence[str]) -> list[str]:
    """List the differences of this script and arguments from a checkpoint's."""
    found: list[str] = []
    if manifest.script_digest and digest and manifest.script_digest != digest:
        found.append("its text")
    if manifest.arguments != tuple(arguments):
        found.append(f"its arguments, which were {shlex.join(manifest.arguments) or 'none'}")
    return found


def _file_of(module: str) -> str | None:
    """Find the file that `python -m` would run; nothing is imported."""
    places = [os.getcwd(), *sys.path]
    for part in (*module.split("."), "__main__"):
        spec = PathFinder.find_spec(part, places)
        if spec is None or spec.submodule_search_locations is None:
            return spec and spec.origin
        places = list(spec.submodule_search_locations)
    return None
