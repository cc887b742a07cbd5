"""Temporary files: every rank makes its own, and knows them for its own.

What the script wants to keep in a place of its choice (`mkdtemp(dir="runs")`) is no such thing: it is made
once. What it makes among the temporary files and leaves there is left by rank 0 only.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import tempfile
from collections.abc import Callable
from typing import Any

from ronde.boundary.caller import called_by_script
from ronde.files.rank_files import RankFiles

__all__ = ["MAKERS", "making"]

MAKERS = ("mkstemp", "mkdtemp", "mktemp", "NamedTemporaryFile", "TemporaryFile")
"""Functions of `tempfile`; its other names call these."""


def making(files: RankFiles, plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, done by every rank for itself; what it made is private to the rank from then on."""
    signature = inspect.signature(plain)
    name = plain.__name__

    @functools.wraps(plain)
    def make(*args: Any, **kwargs: Any) -> Any:
        beside = files.callers.is_beside()
        if not (beside or files.callers.in_step()):
            return plain(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        stays = name in ("mkstemp", "mkdtemp") or (
            name == "NamedTemporaryFile" and not given.get("delete", True)
        )
        located = files.paths.locate(given.get("dir"))
        if located is not None and not _is_passing(files, located):
            if beside and files.is_zero:
                return plain(**given)  # what it calls for that is mediated
            if beside:
                given["dir"] = files.place_to_write(located)
            elif stays:
                return _kept(files, plain, located, given)
        with files.callers.unmediated():
            made = plain(**given)
        path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
        if isinstance(path, (str, bytes)):  # TemporaryFile's name is a descriptor
            files.paths.add_private(path)
            if stays and called_by_script():
                files.paths.left.append(os.path.abspath(os.fsdecode(path)))
        return made

    return make


def _kept(files: RankFiles, plain: Callable[..., Any], located: str, given: dict[str, Any]) -> Any:
    """What `plain` makes in a folder of the script's: a new name, found by rank 0."""
    name = plain.__name__

    def make() -> str:
        if name == "mkdtemp":
            return plain(**given)
        descriptor, path = tempfile.mkstemp(
            **{key: given[key] for key in ("suffix", "prefix", "dir") if key in given}
        )
        os.close(descriptor)
        return path

    path = files.once(f"tempfile.{name}", located, make, changed=lambda path: [os.path.abspath(path)])
    if name == "mkdtemp":
        return path
    if name == "mkstemp":
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), path
    options = {key: given[key] for key in ("buffering", "encoding", "newline", "errors") if key in given}
    file = builtins.open(path, given.get("mode", "w+b"), **options)  # noqa: SIM115 - the script closes it
    wrapper: Any = tempfile._TemporaryFileWrapper
    return wrapper(file, path, delete=False)


def _is_passing(files: RankFiles, located: str) -> bool:
    """Whether what is made in this folder is meant to go away, rather than to be found by the user."""
    return files.paths.is_exempt(located) or located == os.path.realpath(tempfile.gettempdir())
