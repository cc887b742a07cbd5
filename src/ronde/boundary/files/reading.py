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
_OF_LINKS = ("lstat", "readlink")


def asking(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, waiting first for what the script wrote there."""
    publications = mediation.publications
    paths = mediation.paths

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        looks = mediation.looks_aside()
        settled = publications.all_settled and not paths.has_aliases
        governed = not (settled and not looks) and mediation.governs()
        if not (governed or looks) or kwargs.get("dir_fd") is not None:
            return original(*args, **kwargs)
        path = args[0] if args else kwargs.get("path")
        lists = original.__name__ in _LISTINGS
        if path is None and lists:
            path = "."
        located = paths.locate(path)
        if located is None:
            return original(*args, **kwargs)
        if governed:
            mediation.before_reading(located)

        def asked(path: Any) -> Any:
            return original(path, *args[1:], **kwargs) if args else original(**{**kwargs, "path": path})

        if lists and looks and not isinstance(path, bytes) and not paths.is_exempt(located):
            return _list_aside(mediation, asked, original.__name__, paths.renamed(path), located)
        if not looks:
            return asked(paths.renamed(path))
        follow = original.__name__ not in _OF_LINKS and kwargs.get("follow_symlinks", True)
        try:
            return mediation.reading(path, asked, follow=follow)
        except (FileNotFoundError, NotADirectoryError):
            if original.__name__ == "access":
                return False
            raise

    return ask


def _list_aside(mediation: Mediation, asked: Callable[[Any], Any], name: str, path: Any, located: str) -> Any:
    """The names or entries, as threads of this rank have them."""
    aside = mediation.aside
    with mediation.unmediated():
        try:
            if name == "listdir":
                return aside.listed(located)
            return aside.scanned(os.fspath(path), located, lambda _: asked(path))
        except OSError as error:
            error.filename = path
            raise


def starting(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which starts a process, waiting first for all that the script wrote."""

    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        mediation.before_child()
        return original(*args, **kwargs)

    return start
