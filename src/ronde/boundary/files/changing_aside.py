"""What threads of other ranks than the main one change: done to the tree that their rank alone sees.

Nothing here touches the real files, whatever the main rank's threads have made of them meanwhile.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.naming import called
from ronde.boundary.files.operation import DESCRIBING, Operation
from ronde.boundary.files.paths import and_above
from ronde.boundary.files.private_copy import copy_tree, keep

__all__ = ["ChangingAside"]

Arguments = tuple[Any, ...]
# Whose errors do not tell the file.
_NAMELESS = ("utime",) if sys.version_info < (3, 13) else ()


class ChangingAside:
    """Does each operation there."""

    def __init__(self, mediation: Mediation) -> None:
        self._mediation = mediation
        self._aside = mediation.aside

    def change(
        self,
        operation: Operation,
        original: Callable[..., Any],
        paths: list[str],
        args: Arguments,
        kwargs: dict[str, Any],
    ) -> Any:
        """What `original` would do to the real files, and its result.

        Args:
            paths: that it changes, absolute.
        """
        if operation.name in DESCRIBING:
            return self._describe(operation, original, paths[-1], args, kwargs)
        names = [
            args[position] if position < len(args) else kwargs.get(name, operation.default)
            for position, name in operation.changes
        ]
        if operation.moves:
            return self._move(operation, paths, names)
        if operation.name in _REMOVING:
            lenient = kwargs.get("ignore_errors") or (operation.name == "rmtree" and args[1:2] == (True,))
            return self._remove(operation.name, paths[0], names[0], lenient=bool(lenient))
        return self._make(operation, original, paths[0], names[0], args, kwargs)

    def _describe(
        self,
        operation: Operation,
        original: Callable[..., Any],
        located: str,
        args: Arguments,
        kwargs: dict[str, Any],
    ) -> Any:
        """What is said about a file is said of this rank's copy of it."""
        aside, function = self._aside, operation.name
        path = aside.resolve(located, last=operation.follows(kwargs))
        if not aside.is_there(path):
            number = aside.absence(path)
            named = () if function in _NAMELESS else (args[0] if args else located,)
            raise OSError(number, os.strerror(number), *named)
        try:
            place = aside.target(path, keep=True)
        except PermissionError:  # what may not be read has no copy here: it is seen as it comes
            return None
        position, key = operation.changes[0]
        with called({place: args[position] if position < len(args) else kwargs[key]}):
            args, kwargs = _with(args, kwargs, position, key, place)
            if not position:
                return original(*args, **kwargs)
            return self._of_source("src", args, kwargs, original)

    def _remove(self, function: str, located: str, name: Any, *, lenient: bool) -> None:
        path = self._aside.resolve(located, last=False)
        refusal = self._refusal(function, path)
        if refusal is None:
            self._aside.remove(path)
            if function == "removedirs":
                self._prune(path)
        elif not lenient:
            raise OSError(refusal, os.strerror(refusal), name)

    def _refusal(self, function: str, path: str) -> int | None:
        """The number of the error with which the function fails."""
        aside = self._aside
        if not aside.is_there(path):
            return aside.absence(path)
        if function in ("remove", "unlink"):
            return errno.EISDIR if aside.is_folder(path) else None
        if not aside.is_folder(path):
            return errno.ENOTDIR
        return errno.ENOTEMPTY if function != "rmtree" and aside.listed(path) else None

    def _prune(self, path: str) -> None:
        """Remove the folders above that are empty now."""
        for folder in and_above(os.path.dirname(path)):
            if self._aside.listed(folder):
                return
            self._aside.remove(folder)

    def _move(self, operation: Operation, paths: list[str], names: list[Any]) -> Any:
        aside, is_exempt = self._aside, self._mediation.paths.is_exempt
        own = is_exempt(paths[0])
        source = paths[0] if own else aside.resolve(paths[0], last=False)
        if not own and not aside.is_there(source):
            number = aside.absence(source)
            raise OSError(number, os.strerror(number), names[0], None, names[1])
        if is_exempt(paths[1]):
            copy_tree(aside.fetch(source), paths[1])
            aside.remove(source)
            return names[1] if operation.module == "shutil" else None
        target, moved = self._into(operation.name, paths[0], paths[1], names[1])
        target = aside.resolve(target, last=False)
        if operation.name == "renames":
            os.makedirs(os.path.dirname(aside.place(target)), exist_ok=True)
        with called({aside.place(source): names[0], aside.place(target): names[1]}):
            aside.move(source, target, own=own)
        if operation.name == "renames" and not own:
            self._prune(source)
        return moved if operation.module == "shutil" else None

    def _make(
        self,
        operation: Operation,
        original: Callable[..., Any],
        located: str,
        name: Any,
        args: Arguments,
        kwargs: dict[str, Any],
    ) -> Any:
        aside = self._aside
        position, key = operation.changes[0]
        from_key = "filename" if operation.name == "unpack_archive" else "src"
        from_name = (args[0] if args else kwargs.get(from_key)) if position else None
        from_path = self._mediation.paths.locate(from_name)
        target, made = located, name
        if from_path is not None:
            target, made = self._into(operation.name, from_path, located, name)
        path = aside.resolve(target, last=operation.follows(kwargs))
        is_link = path != aside.resolve(target, last=False)
        if operation.name in _FOLDER_OR_NEW and is_link and not aside.is_folder(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        place = aside.target(path, keep=operation.name not in _WRITING_ANEW)
        args, kwargs = _with(args, kwargs, position, key, place)
        with called({place: name}):
            if operation.name == "link":
                return self._link(original, from_name, from_path, place)
            # A symbolic link's text is no path from here: it leads on from where the link lies.
            if from_path is None or operation.name == "symlink":
                result = original(*args, **kwargs)
            else:
                if operation.name in _COPYING and aside.resolve(from_path, last=True) == path:
                    aside.fetch(path)  # onto itself, which fails
                result = self._of_source(from_key, args, kwargs, original)
        if isinstance(result, str) and result.startswith(place):
            return made if result == place else os.fspath(made) + result[len(place) :]
        return result

    def _of_source(
        self, key: str, args: Arguments, kwargs: dict[str, Any], original: Callable[..., Any]
    ) -> Any:
        """What `original` makes of its first argument, called `key`, as this rank sees that."""
        name = args[0] if args else kwargs.get(key)

        def make(source: Any) -> Any:
            given, named = _with(args, kwargs, 0, key, source)
            return original(*given, **named)

        located = self._mediation.paths.locate(name)
        return original(*args, **kwargs) if located is None else self._from(name, located, make)

    def _from(self, name: Any, located: str, make: Callable[[Any], Any]) -> Any:
        """What `make` makes of a source as this rank sees it."""
        if self._mediation.paths.is_exempt(located):
            return make(name)
        found = self._aside.resolve(located, last=True)
        if self._aside.is_folder(found):
            copy = self._aside.fetch(found)
            with called({copy: name}):
                return make(copy)

        return self._mediation.reading_aside(located, name, make)

    def _link(self, original: Callable[..., Any], name: Any, located: str | None, place: str) -> None:
        """A second name for a copy of this rank's own."""
        if located is None:
            return original(name, place)
        if self._mediation.paths.is_exempt(located):
            return keep(located, place, linked=True)
        copy = self._aside.fetch(self._aside.resolve(located, last=False))
        with called({copy: name}):
            return original(copy, place)

    def _into(self, function: str, source: str, target: str, name: Any) -> tuple[str, Any]:
        """The path that comes to be, and the script's name for it, where the target may be a folder."""
        into = function in ("copy", "copy2", "move")
        if not into or not self._aside.is_folder(self._aside.resolve(target, last=True)):
            return target, name
        base = os.path.basename(source)
        return os.path.join(target, base), os.path.join(name, base)


def _with(
    args: Arguments, kwargs: dict[str, Any], position: int, name: str, value: Any
) -> tuple[Arguments, dict[str, Any]]:
    """The arguments, with another value of one."""
    if position < len(args):
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, name: value}


_REMOVING = ("remove", "unlink", "rmdir", "removedirs", "rmtree")
_FOLDER_OR_NEW = ("makedirs", "copytree")
_COPYING = ("copy", "copy2", "copyfile")
_WRITING_ANEW = (*_COPYING, "make_archive", "unpack_archive")
