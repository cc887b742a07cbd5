"""Questions to the file system: answered as of this point of the script, on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ronde.boundary.files.mediation import Mediation

__all__ = ["QUESTIONS", "asking", "starting"]

QUESTIONS = ("stat", "lstat", "access", "listdir", "scandir", "readlink")
"""Functions of `os` whose first argument, `path`, is asked about; `os.path` and `pathlib` stand on them."""


def asking(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, waiting first for what the script wrote there."""
    publications = mediation.publications
    paths = mediation.paths

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        if (publications.all_settled and not paths.has_aliases) or not mediation.governs():
            return original(*args, **kwargs)
        path = args[0] if args else kwargs.get("path")
        located = paths.locate(path)
        if located is None:
            return original(*args, **kwargs)
        mediation.before_reading(located)
        if args:
            return original(paths.renamed(path), *args[1:], **kwargs)
        return original(**{**kwargs, "path": paths.renamed(path)})

    return ask


def starting(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which starts a process, waiting first for all that the script wrote."""

    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        mediation.before_child()
        return original(*args, **kwargs)

    return start
