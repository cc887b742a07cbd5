"""The functions of `os` and `shutil` that change the file system, each done by rank 0 alone."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple

from ronde.files.mirrors import copy_tree
from ronde.files.overlay import called, remove
from ronde.files.rank_files import RankFiles

__all__ = ["CHANGES", "Change", "Changes"]

_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
"""Arguments by which a path is not from the working directory."""
_REMOVING = ("remove", "unlink", "rmdir", "removedirs", "rmtree")
_COPYING = ("copy", "copy2", "copyfile", "copytree")
_READING_A_SOURCE = (*_COPYING, "copymode", "copystat", "link")
_NOT_FOLLOWING = (*_REMOVING, "rename", "replace", "renames", "move", "symlink", "link", "mkdir", "lchown")


class Change(NamedTuple):
    """One function: where it is found, and its arguments that are changed; of two, one moves to the other."""

    module: str
    name: str
    paths: tuple[str, ...]

    @property
    def moves(self) -> bool:
        return len(self.paths) == 2


CHANGES = tuple(
    Change(module, name, tuple(paths.split()))
    for module, paths, names in (
        ("os", "path", "mkdir remove unlink rmdir truncate chmod chown lchown utime mkfifo mknod".split()),
        ("os", "path", "setxattr removexattr".split()),
        ("os", "name", "makedirs removedirs".split()),
        ("os", "dst", "symlink link".split()),
        ("os", "src dst", "rename replace".split()),
        ("os", "old new", "renames".split()),
        ("shutil", "dst", "copy copy2 copyfile copymode copystat copytree".split()),
        ("shutil", "path", "rmtree chown".split()),
        ("shutil", "src dst", "move".split()),
    )
    for name in names
)


class Changes:
    """Makes the form of each function that the script gets."""

    def __init__(self, files: RankFiles) -> None:
        self._files = files

    def replacing(self, change: Change, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`plain`, done once; its result (a path or nothing) is rank 0's on every rank."""
        # That of `os.utime` cannot be had.
        model = (lambda path, times=None, **options: None) if change.name == "utime" else plain
        signature = inspect.signature(model)
        callers, is_exempt = self._files.callers, self._files.paths.is_exempt

        @functools.wraps(plain)
        def function(*args: Any, **kwargs: Any) -> Any:
            beside = callers.is_beside()
            if not (beside or callers.in_step()) or any(kwargs.get(key) is not None for key in _DESCRIPTORS):
                return plain(*args, **kwargs)
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError:
                return plain(*args, **kwargs)  # it says so itself
            located = [self._files.paths.locate(given.arguments[name]) for name in change.paths]
            paths = [path for path in located if path is not None]
            if len(paths) < len(located) or all(map(is_exempt, paths)):
                # Not paths at all (a descriptor, a mistake to be reported), or this rank's own.
                return plain(*args, **kwargs)
            asked = kwargs.get("follow_symlinks", True) or change.name in _READING_A_SOURCE
            follow = bool(asked) and change.name not in _NOT_FOLLOWING
            if not beside:
                return self._once(change, paths, functools.partial(plain, *args, **kwargs), follow=follow)
            with callers.unmediated():
                found = [self._files.overlay.resolve(path, last=follow) for path in paths]
                if self._files.is_zero:
                    self._tell(change, found[-1], given.arguments.get("src"))
                    return plain(*args, **kwargs)
                return self._in_overlay(change, plain, found, given)

        return function

    def _once(self, change: Change, paths: list[str], act: Callable[[], Any], *, follow: bool) -> Any:
        is_exempt, locate = self._files.paths.is_exempt, self._files.paths.locate
        results: list[Any] = []

        def act_and_tell() -> Any:
            results.append(act())
            return results[0] if isinstance(results[0], (str, bytes, PurePath)) else None

        def changed(value: Any) -> list[str]:
            # What a function put into a folder is what it returns; the rest of the folder is as it was.
            made = locate(value)
            return paths if made is None else [*paths[:-1], made]

        # Out of the shared tree into a place that every rank has to itself.
        leaves = change.moves and is_exempt(paths[1])
        value = self._files.once(
            f"{change.module}.{change.name}",
            [path for path in paths if not is_exempt(path)][-1],
            act_and_tell,
            changed=changed,
            below=change.name not in ("mkdir", "makedirs"),
            follow=follow,
            prepare=functools.partial(copy_tree, *paths) if leaves else None,
        )
        if results:
            return results[0]
        if change.moves and self._files.paths.is_private(paths[0]):
            with self._files.callers.unmediated():
                remove(paths[0])  # this rank's own version of what rank 0 moved away
        return value

    def _tell(self, change: Change, target: str, source: Any) -> None:
        """What a thread of rank 0 is about to make, others are not to see."""
        if change.name in ("copy", "copy2", "move") and os.path.isdir(target):
            target = os.path.join(target, os.path.basename(os.path.abspath(os.fsdecode(source))))
        if change.name not in _REMOVING and not self._files.paths.is_exempt(target):
            self._files.overlay.tell(target)

    def _in_overlay(
        self, change: Change, plain: Callable[..., Any], paths: list[str], given: inspect.BoundArguments
    ) -> Any:
        """What `plain` would do to the real files, done to the tree of this rank."""
        overlay, is_exempt = self._files.overlay, self._files.paths.is_exempt
        removes, own = change.name in _REMOVING, is_exempt(paths[0])
        if change.name in ("remove", "unlink", "rmtree") and overlay.is_there(paths[0]):
            folder = overlay.is_there(paths[0], os.path.isdir)
            if folder == (change.name == "rmtree"):
                return overlay.take(paths[0])  # without a copy
        places: dict[str, str] = {}
        if change.name in _READING_A_SOURCE:
            source = self._files.paths.locate(given.arguments["src"])
            if source is not None and not is_exempt(source):
                links = change.name == "link"
                places["src"] = overlay.source(overlay.resolve(source, last=not links), copies=links)
        for name, path in zip(change.paths, paths):
            if removes or (change.moves and name == change.paths[0]):
                place = overlay.fetch
            else:
                keep = change.name not in _COPYING and not change.moves
                place = functools.partial(overlay.target, keep=keep)
            places.update({} if is_exempt(path) else {name: place(path)})
        names = {place: given.arguments[name] for name, place in places.items()}
        given.arguments.update(places)
        with called(names):
            # Into the tree, which may lie on another disk than the place of this rank's own.
            act = shutil.move if change.moves and own else plain
            result = act(*given.args, **given.kwargs)
        if (removes or change.moves) and not own:
            overlay.take(paths[0])
        place = next((place for place in names if f"{result}/".startswith(f"{place}/")), None)
        if place is not None and change.module == "shutil":
            return os.fspath(names[place]) + result[len(place) :]
        return result if change.module == "shutil" else None
