"""What a function that changes the file system is about to do: threads of the main rank say it before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ronde.boundary.files.beginnings import Beginnings
from ronde.boundary.files.operation import DESCRIBING
from ronde.boundary.files.paths import and_above

__all__ = ["foresee", "goes_into"]

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz")


def foresee(beginnings: Beginnings, name: str, *paths: str | None) -> None:
    """Say it.

    Args:
        name: of the function.
        paths: that it changes, without links in them; None stands for one that is each rank's own.
    """
    act = _ACTS.get(name)
    if act is not None:
        act(beginnings, *paths)


def goes_into(name: str, source: str, target: str) -> str:
    """The path that comes to be, where the function puts its source into a folder that is there."""
    if name in ("copy", "copy2", "move") and os.path.isdir(target):
        return os.path.join(target, os.path.basename(source.rstrip("/")))
    return target


def _make(beginnings: Beginnings, path: str) -> None:
    if not os.path.lexists(path):  # else it fails
        beginnings.makes(path)


def _describe(beginnings: Beginnings, path: str) -> None:
    if os.path.lexists(path):
        beginnings.makes(path)  # a second name would keep nothing: what is said holds for all names


def _take(beginnings: Beginnings, path: str) -> None:
    beginnings.takes(path)


def _take_and_prune(beginnings: Beginnings, path: str) -> None:
    """And the folders above that become empty."""
    for above in and_above(path):
        beginnings.takes(above)
        if os.path.isdir(parent := os.path.dirname(above)) and len(os.listdir(parent)) > 1:
            return


def _move(beginnings: Beginnings, source: str | None, target: str | None) -> None:
    if source is not None:
        beginnings.takes(source, moves=True)
    if target is not None:
        beginnings.takes(target)
        beginnings.makes(target, whole=True)


def _move_and_prune(beginnings: Beginnings, source: str | None, target: str | None) -> None:
    if target is not None:
        beginnings.makes_folder(os.path.dirname(target))
    _move(beginnings, source, target)
    if source is not None:
        _take_and_prune(beginnings, source)


def _make_tree(beginnings: Beginnings, path: str) -> None:
    beginnings.makes_folder(os.path.dirname(path))
    beginnings.makes(path, whole=True)


def _make_archive(beginnings: Beginnings, path: str) -> None:
    beginnings.makes_folder(os.path.dirname(path))
    for ending in _ARCHIVES:
        beginnings.makes(path + ending)


def copied_into(source: str, target: str) -> Iterator[str]:
    """The files that copying a tree makes or writes to, in a folder that is there."""
    for folder, _, names in os.walk(source):
        inner = os.path.normpath(os.path.join(target, os.path.relpath(folder, source)))
        yield from (os.path.join(inner, name) for name in names)


_ACTS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("mkdir", "mkfifo", "mknod", "symlink", "link"), _make),
    **dict.fromkeys(("remove", "unlink", "rmdir", "rmtree"), _take),
    **dict.fromkeys(("truncate", "copy", "copy2", "copyfile"), Beginnings.makes),
    **dict.fromkeys(DESCRIBING, _describe),
    **dict.fromkeys(("rename", "replace", "move"), _move),
    **dict.fromkeys(("copytree", "unpack_archive"), _make_tree),
    "makedirs": Beginnings.makes_folder,
    "removedirs": _take_and_prune,
    "renames": _move_and_prune,
    "make_archive": _make_archive,
}
