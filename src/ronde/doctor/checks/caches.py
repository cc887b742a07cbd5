"""The check of caches of compiled code, numba's."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "judge"]

CHECK = "compiled-code"


def check(asked: PreflightRequest) -> Finding:
    """Try to write where numba would."""
    has_numba = importlib.util.find_spec("numba") is not None
    return judge(has_numba, _writable(asked.environment), asked.environment.get("NUMBA_CACHE_DIR", ""))


def judge(has_numba: bool, writable: bool, named: str) -> Finding:
    """Judge by a folder that can be written."""
    if not has_numba:
        return Finding(
            check=CHECK,
            level="good",
            summary="numba is not installed; only embedding tables and servers need it",
        )
    if writable:
        return Finding(check=CHECK, level="good", summary="compiled code of tables is kept between runs")
    return Finding(
        check=CHECK,
        level="wrong" if named else "note",
        summary=f"compiled code of tables cannot be kept{f' in {named}' if named else ''}",
        fix=f"NUMBA_CACHE_DIR={tempfile.gettempdir()}/numba, or another folder that can be written",
    )


def _writable(environment: Mapping[str, str]) -> bool:
    named = environment.get("NUMBA_CACHE_DIR", "")
    if named:
        return _can_write(Path(named))
    source = importlib.util.find_spec("ronde")
    beside = Path(source.origin).parent if source and source.origin else Path("/")
    home = Path(
        environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".cache"
    )
    return _can_write(beside) or _can_write(home)


def _can_write(folder: Path) -> bool:
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return os.access(there, os.W_OK | os.X_OK)
