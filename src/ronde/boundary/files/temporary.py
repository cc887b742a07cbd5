"""Temporary files: every rank makes its own, and knows them for its own.

A folder that the script wants in a place of its choice (`mkdtemp(dir="runs")`) is no such thing: it is made
once.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

from ronde.boundary.files.mediation import Mediation

__all__ = ["MAKERS", "making"]

MAKERS = ("mkstemp", "mkdtemp", "mktemp", "NamedTemporaryFile", "TemporaryFile")
"""Functions of `tempfile`; its other names call these."""


def making(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, done by every rank for itself; what it made is private to the rank from then on."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        in_thread = mediation.in_thread()
        if not (in_thread or mediation.governs()):
            return original(*args, **kwargs)
        folder = kwargs.get("dir", args[2] if len(args) > 2 else None)
        located = mediation.paths.locate(folder)
        if in_thread and located is not None and not _is_passing(mediation, located):
            place = mediation.place_to_write(folder)
            if "dir" in kwargs:
                kwargs = {**kwargs, "dir": folder if place is None else place}
        elif original.__name__ == "mkdtemp" and located is not None and not _is_passing(mediation, located):
            return mediation.meet("tempfile.mkdtemp", located, lambda: original(*args, **kwargs)).value
        with mediation.unmediated():
            made = original(*args, **kwargs)
        path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
        if isinstance(path, (str, bytes)):  # TemporaryFile's name is a descriptor
            mediation.paths.add_private(path)
        return made

    return make


def _is_passing(mediation: Mediation, located: str) -> bool:
    """Whether what is made in this folder is meant to go away, rather than to be found by the user."""
    return mediation.paths.is_exempt(located) or located == os.path.realpath(tempfile.gettempdir())
