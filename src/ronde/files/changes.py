"""Functions of `os` and `shutil` that change the file system, done by rank 0."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple

from ronde.files.overlay import called, remove
from ronde.files.rank_files import RankFiles

__all__ = ["CHANGES", "Change", "Changes"]

_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
"""Arguments that make a path relative to another folder than the working directory."""
_REMOVING = ("remove", "unlink", "rmdir", "rmtree")
_NOT_FOLLOWING = (*_REMOVING, "rename", "replace", "symlink", "link", "mkdir", "lchown")


class Change(NamedTuple):
    """One function that changes files.

    Attributes:
        module, name: the module and the name of the function in it.
        paths: the arguments that are changed; of two, one moves to the other.
        composed: whether it calls others of these functions, which handle calls by threads and processes.
    """

    module: str
    name: str
    paths: tuple[str, ...]
    composed: bool = False

    @property
    def moves(self) -> bool:
        return len(self.paths) == 2


CHANGES = tuple(
    Change(module, name, tuple(paths.split()), composed)
    for module, paths, composed, names in (
        (
            "os",
            "path",
            False,
            "mkdir remove unlink rmdir truncate chmod chown lchown utime mkfifo mknod".split(),
        ),
        ("os", "path", False, "setxattr removexattr".split()),
        ("os", "dst", False, "symlink link".split()),
        ("os", "src dst", False, "rename replace".split()),
        ("shutil", "path", False, ("rmtree",)),
        ("os", "name", True, "makedirs removedirs".split()),
        ("os", "old new", True, "renames".split()),
        ("shutil", "dst", True, "copy copy2 copyfile copymode copystat copytree".split()),
        ("shutil", "path", True, ("chown",)),
        ("shutil", "src dst", True, "move".split()),
    )
    for name in names
)


class Changes:
    """Creates the replacement of each function."""

    def __init__(self, files: RankFiles) -> None:
        self._files = files

    def replacing(self, change: Change, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of `plain` that acts once.

        Its result (a path or nothing) is rank 0's on every rank.
        """
        # `os.utime` has no signature that could be inspected.
        model = (lambda path, times=None, **options: None) if change.name == "utime" else plain
        signature = inspect.signature(model)
        callers, is_exempt = self._files.callers, self._files.paths.is_exempt

        @functools.wraps(plain)
        def function(*args: Any, **kwargs: Any) -> Any:
            beside = callers.is_beside()
            if (beside and change.composed) or any(kwargs.get(key) is not None for key in _DESCRIPTORS):
                return plain(*args, **kwargs)
            if not (beside or callers.in_step()):
                return plain(*args, **kwargs)
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError:
                return plain(*args, **kwargs)  # the plain function raises the error
            located = [self._files.paths.locate(given.arguments[name]) for name in change.paths]
            paths = [path for path in located if path is not None]
            if len(paths) < len(located) or all(map(is_exempt, paths)):
                # Not paths (a descriptor, or an invalid argument), or private paths of this rank.
                return plain(*args, **kwargs)
            if not beside:
                return self._once(change, paths, functools.partial(plain, *args, **kwargs))
            follow = change.name not in _NOT_FOLLOWING and kwargs.get("follow_symlinks", True)
            with callers.unmediated():
                found = [self._files.overlay.resolve(path, last=follow) for path in paths]
                if not self._files.is_zero:
                    return self._in_overlay(change, plain, found, given)
                if change.name not in _REMOVING and not is_exempt(found[-1]):
                    self._files.overlay.tell(found[-1])
                return plain(*args, **kwargs)

        return function

    def _once(self, change: Change, paths: list[str], act: Callable[[], Any]) -> Any:
        is_exempt, locate = self._files.paths.is_exempt, self._files.paths.locate
        results: list[Any] = []

        def act_and_tell() -> Any:
            results.append(act())
            return results[0] if isinstance(results[0], (str, bytes, PurePath)) else None

        def changed(value: Any) -> list[str]:
            # A function returns the path that it made in a folder; the rest of the folder is unchanged.
            made = locate(value)
            return paths if made is None else [*paths[:-1], made]

        value = self._files.once(
            f"{change.module}.{change.name}",
            [path for path in paths if not is_exempt(path)][-1],
            act_and_tell,
            changed=changed,
            below=change.name not in ("mkdir", "makedirs"),
        )
        if not results and change.moves and self._files.paths.is_private(paths[0]):
            with self._files.callers.unmediated():
                remove(paths[0])  # this rank's own version of the path that rank 0 moved away
        return results[0] if results else value

    def _in_overlay(
        self, change: Change, plain: Callable[..., Any], paths: list[str], given: inspect.BoundArguments
    ) -> None:
        """Apply a change of real files to this rank's overlay instead."""
        overlay, is_exempt = self._files.overlay, self._files.paths.is_exempt
        removes, own = change.name in _REMOVING, is_exempt(paths[0])
        place = overlay.find(paths[0])
        is_folder = os.path.isdir(place) and not os.path.islink(place)
        removable = os.path.lexists(place) and is_folder == (change.name == "rmtree")
        if removes and removable and change.name != "rmdir":
            return overlay.take(paths[0])  # without a copy
        places: dict[str, str] = {}
        if change.name == "link":
            source = self._files.paths.locate(given.arguments["src"])
            if source is not None and not is_exempt(source):
                places["src"] = overlay.fetch(overlay.resolve(source, last=False))
        for name, path in zip(change.paths, paths):
            if removes or (change.moves and name == change.paths[0]):
                to = overlay.fetch
            else:
                to = functools.partial(overlay.target, keep=not change.moves)
            places.update({} if is_exempt(path) else {name: to(path)})
        names = {place: given.arguments[name] for name, place in places.items()}
        given.arguments.update(places)
        with called(names):
            # The overlay may lie on another disk than this rank's private files, so the move may be a copy.
            (shutil.move if change.moves and own else plain)(*given.args, **given.kwargs)
        if (removes or change.moves) and not own:
            overlay.take(paths[0])
        return None
