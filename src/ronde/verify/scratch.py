"""A copy of the user's directory for one run: links, and new files.

Relative paths read the user's files (two levels up as well: `../data`), and files that the run writes stay in
the copy, also where the user's directory has a file of that name (see writes.py). Not confined are absolute
paths, other programs that the script starts, and libraries that write without python.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

__all__ = ["Scratch", "build", "move", "written"]

_LEVELS_UP = 2
# A directory above with more entries than this is a common place (/tmp, /home), not part of a project.
_MANY = 500


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """Folders of a copy: `directory`, in which to run, `tree` around it, and the `source`."""

    tree: Path
    directory: Path
    source: Path


def build(tree: Path, source: Path) -> Scratch:
    """Make the copy of `source` under the new directory `tree`."""
    source = source.resolve()
    tree = tree.resolve()
    tree.mkdir(parents=True)
    above = list(source.parents)[:_LEVELS_UP][::-1]
    place = tree
    for directory, inner in zip(above, [*above[1:], source], strict=True):
        entries = os.listdir(directory)
        if len(entries) <= _MANY:
            _link(directory, place, [name for name in entries if name != inner.name])
        place = place / inner.name
        place.mkdir()
    _link(source, place, os.listdir(source))
    return Scratch(tree=tree, directory=place, source=source)


def move(scratch: Scratch, tree: Path) -> Scratch:
    """Rename the copy of a run that has ended; its links stay unchanged."""
    tree = tree.resolve()
    os.rename(scratch.tree, tree)
    return dataclasses.replace(
        scratch, tree=tree, directory=tree / scratch.directory.relative_to(scratch.tree)
    )


def _link(source: Path, place: Path, names: list[str]) -> None:
    for name in names:
        os.symlink(source / name, place / name)


def written(scratch: Scratch) -> dict[str, Path]:
    """Return the files that the run wrote, by path relative to the run's directory.

    Links to the user's files do not count.
    """
    found: dict[str, Path] = {}
    for directory, _, names in os.walk(scratch.tree):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink() and "__pycache__" not in path.parts:
                found[os.path.relpath(path, scratch.directory)] = path
    return dict(sorted(found.items()))
