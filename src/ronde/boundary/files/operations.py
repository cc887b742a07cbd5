"""The functions of `os` and `shutil` that change the file system, each done by the main rank alone."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.private_copy import Mirrors, copy_tree

__all__ = ["OPERATIONS", "Operation", "Operations"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One mutating function.

    Attributes:
        module, name: where it is found.
        changes: the path arguments that it changes, as (position, name).
        moves: whether the first of them goes away to become the second.
        default: path that is changed when the argument is left out.
    """

    module: str
    name: str
    changes: tuple[tuple[int, str], ...]
    moves: bool = False
    default: str | None = None


def _operations(module: str, change: tuple[int, str], *names: str) -> tuple[Operation, ...]:
    return tuple(Operation(module=module, name=name, changes=(change,)) for name in names)


def _moves(module: str, source: str, target: str, *names: str) -> tuple[Operation, ...]:
    changes = ((0, source), (1, target))
    return tuple(Operation(module=module, name=name, changes=changes, moves=True) for name in names)


OPERATIONS = (
    *_operations(
        "os", (0, "path"), "mkdir", "remove", "unlink", "rmdir", "truncate", "chmod", "chown", "lchown"
    ),
    *_operations("os", (0, "path"), "utime", "mkfifo", "mknod", "setxattr", "removexattr"),
    *_operations("os", (0, "name"), "makedirs", "removedirs"),
    *_operations("os", (1, "dst"), "symlink", "link"),
    *_moves("os", "src", "dst", "rename", "replace"),
    *_moves("os", "old", "new", "renames"),
    *_operations("shutil", (1, "dst"), "copy", "copy2", "copyfile", "copymode", "copystat", "copytree"),
    *_operations("shutil", (0, "path"), "rmtree", "chown"),
    *_operations("shutil", (0, "base_name"), "make_archive"),
    Operation(module="shutil", name="unpack_archive", changes=((1, "extract_dir"),), default="."),
    *_moves("shutil", "src", "dst", "move"),
)


class Operations:
    """Makes the mediated form of each operation."""

    def __init__(self, mediation: Mediation, mirrors: Mirrors) -> None:
        self._mediation = mediation
        self._mirrors = mirrors

    def mediated(self, operation: Operation, original: Callable[..., Any]) -> Callable[..., Any]:
        """`original`, done once; its result (a path or nothing) is the main rank's on every rank."""
        mediation = self._mediation
        label = f"{operation.module}.{operation.name}"

        @functools.wraps(original)
        def once(*args: Any, **kwargs: Any) -> Any:
            aside = mediation.in_thread()
            if not (aside or mediation.governs()) or any(kwargs.get(key) is not None for key in _DESCRIPTORS):
                return original(*args, **kwargs)
            located = [self._locate(change, operation.default, args, kwargs) for change in operation.changes]
            paths = [path for path in located if path is not None]
            if len(paths) < len(located) or all(mediation.paths.is_exempt(path) for path in paths):
                # Not paths at all (a descriptor, a mistake to be reported), or this rank's own.
                return original(*args, **kwargs)
            if aside:
                with mediation.unmediated():
                    if not mediation.is_main:
                        return self._change_aside(operation, original, paths, args, kwargs)
                    for path in paths:
                        parents = operation.name in _MAKES_PARENTS
                        mediation.beginnings.save(path, content=False, parents=parents)
                    return original(*args, **kwargs)
            return self._meet(label, operation, paths, functools.partial(original, *args, **kwargs))

        return once

    def _meet(self, label: str, operation: Operation, paths: list[str], act: Callable[[], Any]) -> Any:
        mediation = self._mediation
        results: list[Any] = []

        def act_and_tell() -> Any:
            results.append(act())
            return results[0] if isinstance(results[0], (str, bytes, PurePath)) else None

        prepare: Callable[[], None] | None = None
        if operation.moves and mediation.paths.is_exempt(paths[1]):
            # Out of the shared tree into a place that every rank has to itself.
            prepare = functools.partial(copy_tree, *paths)
        shared = [path for path in paths if not mediation.paths.is_exempt(path)]
        outcome = mediation.meet(label, shared[-1], act_and_tell, prepare=prepare)
        for path in paths:
            self._mirrors.forget(path)
            if operation.name not in _MAKES_FOLDERS:
                mediation.met_over(path)
        if results:
            return results[0]
        if operation.moves and mediation.paths.is_private(paths[0]):
            self._discard(paths[0])
        return outcome.value

    def _change_aside(
        self,
        operation: Operation,
        original: Callable[..., Any],
        paths: list[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What a thread of another rank does to the tree that this rank alone sees."""
        aside, exempt = self._mediation.aside, self._mediation.paths.is_exempt
        there = aside.find(paths[0]) is not None or aside.was_there(paths[0])
        if (operation.moves or operation.name in _REMOVES) and not there and not exempt(paths[0]):
            if kwargs.get("ignore_errors") or (operation.name == "rmtree" and args[1:2] == (True,)):
                return None
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), args[0] if args else paths[0])
        if operation.moves:
            if exempt(paths[1]):
                copy_tree(aside.source(paths[0], paths[0]), paths[1])
                aside.remove(paths[0], self._discard)
            else:
                aside.move(*paths, own=exempt(paths[0]))
            return args[1] if operation.module == "shutil" and len(args) > 1 else None
        if operation.name in _REMOVES:
            return aside.remove(paths[0], lambda place: original(place, *args[1:], **kwargs))
        if operation.name in _MAKES_FOLDERS:
            if (there and aside.find(paths[0]) is None) or (
                operation.name == "mkdir" and not aside.is_folder(os.path.dirname(paths[0]))
            ):
                return original(*args, **kwargs)  # it fails, or has nothing to do
            return aside.make_folder(paths[0], lambda place: original(place, *args[1:], **kwargs))
        if operation.name in _DESCRIBES:
            return None
        place = aside.target(paths[0], keep=True)
        position, name = operation.changes[0]
        if position:  # what comes before it is read
            args = tuple(self._readable(value) if at == 0 else value for at, value in enumerate(args))
        if position < len(args):
            args = (*args[:position], place, *args[position + 1 :])
        else:
            kwargs = {**kwargs, name: place}
        return aside.visible_name(original(*args, **kwargs))

    def _readable(self, path: Any) -> Any:
        """What is to be copied, as this rank sees it."""
        aside, located = self._mediation.aside, self._mediation.paths.locate(path)
        if located is None or self._mediation.paths.is_exempt(located):
            return path
        return aside.whole(located) if aside.is_folder(located) else aside.source(located, path)

    def _discard(self, path: str) -> None:
        """This rank's own version of what the main rank moved away."""
        with self._mediation.unmediated():
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.unlink(path)

    def _locate(
        self, change: tuple[int, str], default: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        position, name = change
        path = args[position] if position < len(args) else kwargs.get(name)
        return self._mediation.paths.locate(default if path is None else path)


_MAKES_FOLDERS = ("mkdir", "makedirs")
_MAKES_PARENTS = ("makedirs", "renames", "copytree", "make_archive", "unpack_archive")
_REMOVES = ("remove", "unlink", "rmdir", "removedirs", "rmtree")
# What is said about a file beside its content is of no use to those who read a copy.
_DESCRIBES = (
    "chmod",
    "chown",
    "lchown",
    "utime",
    "setxattr",
    "removexattr",
    "copymode",
    "copystat",
    "mkfifo",
    "mknod",
)
_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
