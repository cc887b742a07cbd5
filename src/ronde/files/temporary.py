"""Temporary files, which every rank makes for itself, as private ones.

Files that the script keeps in a place of its choice (`mkdtemp(dir="runs")`) are not temporary: they are made
once.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
from collections.abc import Callable
from typing import Any

from ronde.files.rank_files import RankFiles

__all__ = ["MAKERS", "making"]

MAKERS = ("mkstemp", "mkdtemp", "mktemp", "NamedTemporaryFile", "TemporaryFile")
"""Functions of `tempfile`; its other names call these."""


def making(files: RankFiles, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `plain` to act on every rank, with results private to the rank."""
    signature = inspect.signature(plain)
    name, among = plain.__name__, os.path.realpath(tempfile.gettempdir())

    @functools.wraps(plain)
    def make(*args: Any, **kwargs: Any) -> Any:
        beside = files.callers.is_beside()
        if not (beside or files.callers.in_step()):
            return plain(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        located = files.paths.locate(given.get("dir"))
        stays = name in ("mkstemp", "mkdtemp") or not given.get("delete", True)
        # Files among temporary ones are meant to be removed, rather than to be found by the user.
        passes = located is None or files.paths.is_exempt(located) or located == among
        if stays and not passes:
            if beside:
                return plain(**given)
            names: Any = tempfile._get_candidate_names()  # pyright: ignore[reportAttributeAccessIssue]
            names.rng.seed(files.alike(f"tempfile.{name}", lambda: names.rng.getrandbits(64)))
            try:
                return plain(**given)  # the functions that it calls are mediated
            finally:
                names.rng.seed()  # later names are this rank's own
        with files.callers.unmediated():
            made = plain(**given)
        path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
        if isinstance(path, (str, bytes)):  # the name of a TemporaryFile is a descriptor
            files.paths.add_private(path)
        return made

    return make
