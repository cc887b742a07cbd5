"""Questions to the file system: answered as of this point of the script, on every rank."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ronde.boundary.files.mediation import Mediation

__all__ = ["QUESTIONS", "asking", "starting"]

QUESTIONS = ("stat", "lstat", "access", "listdir", "scandir", "readlink")
"""Functions of `os` whose first argument, `path`, is asked about; `os.path` and `pathlib` stand on them."""

_LISTINGS = ("listdir", "scandir")


def asking(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, waiting first for what the script wrote there."""
    publications = mediation.publications
    paths = mediation.paths

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        aside = mediation.looks_aside()
        settled = publications.all_settled and not paths.has_aliases
        governed = not (settled and not aside) and mediation.governs()
        if not (governed or aside):
            return original(*args, **kwargs)
        path = args[0] if args else kwargs.get("path")
        if path is None and original.__name__ in _LISTINGS:
            path = "."
        located = paths.locate(path)
        if located is None:
            return original(*args, **kwargs)
        if governed:
            mediation.before_reading(located)
        renamed = paths.renamed(path)

        def asked(path: Any) -> Any:
            return original(path, *args[1:], **kwargs) if args else original(**{**kwargs, "path": path})

        return _ask_aside(mediation, asked, original.__name__, renamed, located) if aside else asked(renamed)

    return ask


def _ask_aside(mediation: Mediation, asked: Callable[[Any], Any], name: str, path: Any, located: str) -> Any:
    """The answer, with what threads of this rank have made or removed."""
    aside = mediation.aside
    with mediation.unmediated():
        if name in _LISTINGS and not isinstance(path, bytes):
            if name == "listdir":
                return aside.listed(located, lambda: asked(path))
            return aside.scanned(os.fspath(path), located, lambda: asked(path))
        place = aside.source(located, path)
    return asked(path if place == located else place)


def starting(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which starts a process, waiting first for all that the script wrote."""

    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        mediation.before_child()
        return original(*args, **kwargs)

    return start
