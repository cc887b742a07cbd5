"""What files a program is told of: paths in its arguments, and what it is to print into."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

__all__ = ["alike", "named_paths", "words"]

_BETWEEN = re.compile(r"[\s;|&<>()'\"=:,]+")


def words(command: Any) -> list[str]:
    """A command as a list of texts, whether it is one for a shell or a list of arguments."""
    parts = [command] if isinstance(command, (str, bytes, os.PathLike)) else list(command)
    return [os.fsdecode(part) for part in parts]


def named_paths(command: Any, options: Mapping[str, Any]) -> list[str]:
    """Absolute paths that it may mean.

    Args:
        options: of `subprocess.run`: the folder that it works in, what it prints into.
    """
    folder = os.path.join(os.getcwd(), os.fsdecode(options.get("cwd") or ""))
    texts = [*_texts(words(command)), *_names_of_files(options)]
    found = dict.fromkeys(os.path.normpath(os.path.join(folder, text)) for text in texts if text)
    return [path for path in found if path != "/"]


def alike(paths: Iterable[str], inside: Callable[[str], Iterable[str]]) -> set[str]:
    """Those of the paths that there are, and their likes: with one more ending (`gzip`), or one less.

    Args:
        inside: names in a folder.
    """
    names: dict[str, set[str]] = {}
    found: set[str] = set()
    for path in paths:
        folder, base = os.path.split(path)
        if folder not in names:
            names[folder] = set(inside(folder))
        found.update(os.path.join(folder, name) for name in names[folder] if _are_alike(name, base))
    return found


def _are_alike(name: str, base: str) -> bool:
    return name == base or name.startswith(f"{base}.") or base.startswith(f"{name}.")


def _texts(arguments: list[str]) -> Iterator[str]:
    """Each argument, and the parts of it: `--out=a`, `sh -c "gzip a"`."""
    for argument in arguments:
        yield argument
        yield from _BETWEEN.split(argument)


def _names_of_files(options: Mapping[str, Any]) -> Iterator[str]:
    for key in ("stdout", "stderr"):
        name = getattr(options.get(key), "name", None)
        if isinstance(name, (str, bytes)):
            yield os.path.abspath(os.fsdecode(name))
