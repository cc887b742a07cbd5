"""Temporary files: every rank makes its own, and knows them for its own.

What the script wants to keep in a place of its choice (`mkdtemp(dir="runs")`) is no such thing: it is made
once. What it makes among the temporary files and leaves there is left by the main rank only.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from ronde.boundary.caller import called_by_script
from ronde.boundary.files.mediation import Mediation

__all__ = ["MAKERS", "making", "remove_all"]

MAKERS = ("mkstemp", "mkdtemp", "mktemp", "NamedTemporaryFile", "TemporaryFile")
"""Functions of `tempfile`; its other names call these."""


def making(mediation: Mediation, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, done by every rank for itself; what it made is private to the rank from then on."""
    signature = inspect.signature(original)
    name = original.__name__

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        in_thread = mediation.in_thread()
        if not (in_thread or mediation.governs()):
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        stays = name in ("mkstemp", "mkdtemp") or (
            name == "NamedTemporaryFile" and not given.get("delete", True)
        )
        located = mediation.paths.locate(given.get("dir"))
        if located is not None and not _is_passing(mediation, located):
            if in_thread and mediation.is_main:
                return original(**given)  # what it calls for that is mediated
            if in_thread:
                given["dir"] = mediation.place_to_write(located) or given["dir"]
            elif stays:
                return _KEPT[name](mediation, original, located, given)
        with mediation.unmediated():
            made = original(**given)
        path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
        if isinstance(path, (str, bytes)):  # TemporaryFile's name is a descriptor
            mediation.paths.add_private(path)
            if stays and called_by_script():
                mediation.paths.left.append(os.path.abspath(os.fsdecode(path)))
        return made

    return make


def remove_all(paths: Iterable[str]) -> None:
    """Remove these files and folders, as far as they are there."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)


def _kept_folder(
    mediation: Mediation, original: Callable[..., Any], located: str, given: dict[str, Any]
) -> Any:
    path = mediation.meet("tempfile.mkdtemp", located, lambda: original(**given)).value
    mediation.met_over(os.path.abspath(path))
    return path


def _kept_descriptor(
    mediation: Mediation, original: Callable[..., Any], located: str, given: dict[str, Any]
) -> Any:
    path = _new_file(mediation, "tempfile.mkstemp", located, given)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), path


def _kept_file(
    mediation: Mediation, original: Callable[..., Any], located: str, given: dict[str, Any]
) -> Any:
    path = _new_file(mediation, "tempfile.NamedTemporaryFile", located, given)
    options = {name: given[name] for name in ("buffering", "encoding", "newline", "errors") if name in given}
    file = builtins.open(path, given.get("mode", "w+b"), **options)  # noqa: SIM115 - the script closes it
    wrapper: Any = tempfile._TemporaryFileWrapper
    return wrapper(file, path, delete=False)


def _new_file(mediation: Mediation, label: str, located: str, given: dict[str, Any]) -> str:
    """An empty file of a new name, made by the main rank."""
    named = {name: given[name] for name in ("suffix", "prefix", "dir") if name in given}

    def make() -> str:
        descriptor, path = tempfile.mkstemp(**named)
        os.close(descriptor)
        return path

    path = mediation.meet(label, located, make).value
    mediation.met_over(os.path.abspath(path))
    return path


_KEPT = {"mkdtemp": _kept_folder, "mkstemp": _kept_descriptor, "NamedTemporaryFile": _kept_file}


def _is_passing(mediation: Mediation, located: str) -> bool:
    """Whether what is made in this folder is meant to go away, rather than to be found by the user."""
    return mediation.paths.is_exempt(located) or located == os.path.realpath(tempfile.gettempdir())
