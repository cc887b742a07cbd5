"""The functions of `os` and `shutil` that change the file system, each done by the main rank alone."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from ronde.boundary.files.changing_aside import ChangingAside
from ronde.boundary.files.foreseeing import copied_into, foresee, goes_into
from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.operation import DESCRIPTORS, MAKING_FOLDERS, Operation
from ronde.boundary.files.private_copy import Mirrors, copy_tree, remove

__all__ = ["Operations"]


class Operations:
    """Makes the mediated form of each operation."""

    def __init__(self, mediation: Mediation, mirrors: Mirrors) -> None:
        self._mediation = mediation
        self._mirrors = mirrors
        self._aside = ChangingAside(mediation)

    def mediated(self, operation: Operation, original: Callable[..., Any]) -> Callable[..., Any]:
        """`original`, done once; its result (a path or nothing) is the main rank's on every rank."""
        mediation = self._mediation
        label = f"{operation.module}.{operation.name}"

        @functools.wraps(original)
        def once(*args: Any, **kwargs: Any) -> Any:
            in_thread = mediation.in_thread()
            if not (in_thread or mediation.governs()) or any(
                kwargs.get(key) is not None for key in DESCRIPTORS
            ):
                return original(*args, **kwargs)
            located = [self._locate(change, operation.default, args, kwargs) for change in operation.changes]
            paths = [path for path in located if path is not None]
            if len(paths) < len(located) or all(mediation.paths.is_exempt(path) for path in paths):
                # Not paths at all (a descriptor, a mistake to be reported), or this rank's own.
                return original(*args, **kwargs)
            if not in_thread:
                act = functools.partial(original, *args, **kwargs)
                return self._meet(label, operation, paths, act, follow=operation.follows(kwargs))
            with mediation.unmediated():
                if not mediation.is_main:
                    return self._aside.change(operation, original, paths, args, kwargs)
                source = args[0] if args else kwargs.get("src")
                self._foresee(operation, paths, source, follow=operation.follows(kwargs))
                return original(*args, **kwargs)

        return once

    def _meet(
        self, label: str, operation: Operation, paths: list[str], act: Callable[[], Any], *, follow: bool
    ) -> Any:
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
        # What a function put into a folder is what it returns; the rest of the folder is as it was.
        made = mediation.paths.locate(outcome.value)
        for path in paths if made is None else (*paths[:-1], made):
            self._mirrors.forget(path)
            if operation.name in MAKING_FOLDERS:
                mediation.met_in(path)
            else:
                mediation.met_over(path, follow=follow)
        if results:
            return results[0]
        if operation.moves and mediation.paths.is_private(paths[0]):
            with mediation.unmediated():
                remove(paths[0])  # this rank's own version of what the main rank moved away
        return outcome.value

    def _foresee(self, operation: Operation, paths: list[str], source: Any, *, follow: bool) -> None:
        """Tell what a thread of the main rank is about to do."""
        mediation, beginnings = self._mediation, self._mediation.beginnings
        read_from = mediation.paths.locate(source)
        *others, target = paths
        if read_from is not None:
            target = goes_into(operation.name, read_from, target)
            if operation.name == "copytree" and os.path.isdir(target):
                for file in copied_into(read_from, os.path.realpath(target)):
                    beginnings.makes_folder(os.path.dirname(file))
                    beginnings.makes(os.path.realpath(file))
        found = [mediation.resolve(path, last=follow) for path in (*others, target)]
        if any(not mediation.paths.is_exempt(path) for path in found):
            foresee(
                beginnings,
                operation.name,
                *(None if mediation.paths.is_exempt(path) else path for path in found),
            )

    def _locate(
        self, change: tuple[int, str], default: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        position, name = change
        path = args[position] if position < len(args) else kwargs.get(name)
        return self._mediation.paths.locate(default if path is None else path)
