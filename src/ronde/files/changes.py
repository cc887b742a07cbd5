"""The functions of `os` and `shutil` that change the file system, each done by rank 0 alone."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from ronde.files.mirrors import copy_tree
from ronde.files.overlay import called, remove
from ronde.files.rank_files import RankFiles

__all__ = ["CHANGES", "Change", "Changes"]

_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
"""Arguments by which a path is not from the working directory."""
_MAKING_FOLDERS = ("mkdir", "makedirs")
_REMOVING = ("remove", "unlink", "rmdir", "removedirs", "rmtree")
_READING_A_SOURCE = (
    "copy",
    "copy2",
    "copyfile",
    "copymode",
    "copystat",
    "copytree",
    "link",
    "unpack_archive",
)
_WRITING_ANEW = ("copy", "copy2", "copyfile", "make_archive", "unpack_archive")
_NOT_FOLLOWING = (*_REMOVING, "rename", "replace", "renames", "move", "symlink", "link", "mkdir", "lchown")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One function.

    Attributes:
        module, name: where it is found.
        paths: the path arguments that it changes, as (position, name).
        moves: whether the first of them goes away to become the second.
        default: path that is changed when the argument is left out.
    """

    module: str
    name: str
    paths: tuple[tuple[int, str], ...]
    moves: bool = False
    default: str | None = None

    def follows(self, options: Mapping[str, Any]) -> bool:
        """Whether it follows a link in the path that it changes.

        Args:
            options: with which it is called.
        """
        asked = options.get("follow_symlinks", True) or self.name in _READING_A_SOURCE
        return bool(asked) and self.name not in _NOT_FOLLOWING


def _changing(module: str, path: tuple[int, str], names: str) -> tuple[Change, ...]:
    return tuple(Change(module=module, name=name, paths=(path,)) for name in names.split())


def _moving(module: str, source: str, target: str, names: str) -> tuple[Change, ...]:
    paths = ((0, source), (1, target))
    return tuple(Change(module=module, name=name, paths=paths, moves=True) for name in names.split())


CHANGES = (
    *_changing("os", (0, "path"), "mkdir remove unlink rmdir truncate chmod chown lchown utime mkfifo mknod"),
    *_changing("os", (0, "path"), "setxattr removexattr"),
    *_changing("os", (0, "name"), "makedirs removedirs"),
    *_changing("os", (1, "dst"), "symlink link"),
    *_moving("os", "src", "dst", "rename replace"),
    *_moving("os", "old", "new", "renames"),
    *_changing("shutil", (1, "dst"), "copy copy2 copyfile copymode copystat copytree"),
    *_changing("shutil", (0, "path"), "rmtree chown"),
    *_changing("shutil", (0, "base_name"), "make_archive"),
    Change(module="shutil", name="unpack_archive", paths=((1, "extract_dir"),), default="."),
    *_moving("shutil", "src", "dst", "move"),
)


class Changes:
    """Makes the form of each function that the script gets."""

    def __init__(self, files: RankFiles) -> None:
        self._files = files

    def replacing(self, change: Change, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`plain`, done once; its result (a path or nothing) is rank 0's on every rank."""

        @functools.wraps(plain)
        def function(*args: Any, **kwargs: Any) -> Any:
            beside = self._files.callers.is_beside()
            if not (beside or self._files.callers.in_step()) or any(
                kwargs.get(key) is not None for key in _DESCRIPTORS
            ):
                return plain(*args, **kwargs)
            is_exempt = self._files.paths.is_exempt
            paths = [self._located(change, place, args, kwargs) for place in change.paths]
            if None in paths or all(is_exempt(path) for path in paths if path is not None):
                # Not paths at all (a descriptor, a mistake to be reported), or this rank's own.
                return plain(*args, **kwargs)
            located = [path for path in paths if path is not None]
            if not beside:
                act = functools.partial(plain, *args, **kwargs)
                return self._once(change, located, act, follow=change.follows(kwargs))
            with self._files.callers.unmediated():
                if self._files.is_zero:
                    self._tell(change, located, args, kwargs)
                    return plain(*args, **kwargs)
                return self._in_overlay(change, plain, located, args, kwargs)

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

        prepare: Callable[[], None] | None = None
        if change.moves and is_exempt(paths[1]):
            # Out of the shared tree into a place that every rank has to itself.
            prepare = functools.partial(copy_tree, *paths)
        shared = [path for path in paths if not is_exempt(path)]
        value = self._files.once(
            f"{change.module}.{change.name}",
            shared[-1],
            act_and_tell,
            changed=changed,
            below=change.name not in _MAKING_FOLDERS,
            follow=follow,
            prepare=prepare,
        )
        if results:
            return results[0]
        if change.moves and self._files.paths.is_private(paths[0]):
            with self._files.callers.unmediated():
                remove(paths[0])  # this rank's own version of what rank 0 moved away
        return value

    def _tell(self, change: Change, paths: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a thread of rank 0 is about to make, others are not to see."""
        overlay = self._files.overlay
        if change.name in _REMOVING:
            return
        target = overlay.resolve(paths[-1], last=change.follows(kwargs))
        source = self._files.paths.locate(args[0] if args else kwargs.get("src"))
        if change.name in ("copy", "copy2", "move") and source is not None and os.path.isdir(target):
            target = os.path.join(target, os.path.basename(source))
        if not self._files.paths.is_exempt(target):
            overlay.tell(target)

    def _in_overlay(
        self,
        change: Change,
        plain: Callable[..., Any],
        paths: list[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What `plain` would do to the real files, done to the tree of this rank."""
        overlay, is_exempt = self._files.overlay, self._files.paths.is_exempt
        found = [overlay.resolve(path, last=change.follows(kwargs)) for path in paths]
        if change.name in ("remove", "unlink", "rmtree") and overlay.is_there(found[0]):
            folder = overlay.is_there(found[0], os.path.isdir)
            if folder == (change.name == "rmtree"):
                return overlay.take(found[0])  # without a copy
        names: dict[Any, Any] = {}

        def give(position: int, key: str, place: str) -> None:
            nonlocal args, kwargs
            names[place] = args[position] if position < len(args) else kwargs.get(key, change.default)
            if position < len(args):
                args = (*args[:position], place, *args[position + 1 :])
            else:
                kwargs = {**kwargs, key: place}

        if change.name in _READING_A_SOURCE:
            key = "filename" if change.name == "unpack_archive" else "src"
            source = self._files.paths.locate(args[0] if args else kwargs.get(key))
            if source is not None and not is_exempt(source):
                give(0, key, self._source(change, overlay.resolve(source, last=change.name != "link")))
        for (position, key), path in zip(change.paths, found):
            if not is_exempt(path):
                leaves = (change.moves and position == 0) or change.name in _REMOVING
                keep = change.name not in _WRITING_ANEW and not change.moves
                give(position, key, overlay.fetch(path) if leaves else overlay.target(path, keep=keep))
        with called(names):
            moved_in = change.moves and is_exempt(found[0])
            result = (shutil.move if moved_in else plain)(*args, **kwargs)
        for path in found[: 1 if change.moves or change.name in _REMOVING else 0]:
            if not is_exempt(path):
                overlay.take(path)
        if not isinstance(result, str):
            return result
        place = next((place for place in names if f"{result}/".startswith(f"{place}/")), result)
        return (
            os.fspath(names.get(place, place)) + result[len(place) :] if change.module == "shutil" else None
        )

    def _source(self, change: Change, path: str) -> str:
        """Where this rank has what is read: a folder, or what gets a second name, as a copy."""
        overlay = self._files.overlay
        if change.name == "link" or overlay.is_there(path, os.path.isdir):
            return overlay.fetch(path)
        try:
            return overlay.look(path, str)
        except FileNotFoundError:
            return overlay.place(path)

    def _located(
        self, change: Change, place: tuple[int, str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        position, name = place
        path = args[position] if position < len(args) else kwargs.get(name)
        return self._files.paths.locate(change.default if path is None else path)
