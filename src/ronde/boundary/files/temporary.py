"""Temporary files: every rank makes its own, and knows them for its own."""

from __future__ import annotations

import functools
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
        if not mediation.governs():
            return original(*args, **kwargs)
        with mediation.unmediated():
            made = original(*args, **kwargs)
        path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
        if isinstance(path, (str, bytes)):  # TemporaryFile's name is a descriptor
            mediation.paths.add_private(path)
        return made

    return make
