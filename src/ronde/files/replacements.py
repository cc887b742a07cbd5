"""Replaces functions of Python wherever they are referenced: aliases, classes, tables."""

from __future__ import annotations

import glob
import os
import pathlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ronde.patching.patches import Patches

__all__ = ["Replacements"]

_CAPABILITIES = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")
_LEFT_ALONE = ("ronde", "posix", "_io")


class Replacements:
    """The replacements of one rank; `patches` restores the originals."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._replaced: dict[int, tuple[Any, Any]] = {}

    def set(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace `owner.name` by `make(owner.name)`."""
        plain = getattr(owner, name)
        replacement = make(plain)
        self._patches.set(owner, name, replacement)
        self._replaced[id(plain)] = (plain, replacement)

    def spread(self) -> None:
        """Replace the functions where other modules and classes reference them."""
        for module in list(sys.modules.values()):  # `from shutil import rmtree`, `bz2._builtin_open`
            if isinstance(module, ModuleType) and module.__name__.split(".")[0] not in _LEFT_ALONE:
                self._spread_in(module)
        # pathlib references functions of `os` in a class: in pathlib up to Python 3.10, in glob from 3.13 on.
        for kind in (getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None)):
            if kind is not None:
                self._spread_in(kind)
        # The sets by which `os` declares capabilities of its functions get the replacements too.
        for functions in (getattr(os, name) for name in _CAPABILITIES):
            added = [new for old, new in self._replaced.values() if old in functions]
            functions.update(added)
            self._patches.undo(lambda functions=functions, added=added: functions.difference_update(added))
        # `numpy.savetxt` opens through a table that was made when numpy was imported.
        openers: Any = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
        if openers is not None:
            table = {kind: self._of(opener) for kind, opener in openers._file_openers.items()}
            self._patches.set(openers, "_file_openers", table)

    def _spread_in(self, owner: Any) -> None:
        for name, value in list(vars(owner).items()):
            plain = getattr(value, "__func__", value) if isinstance(owner, type) else value
            replacement = self._of(plain)
            if replacement is not plain:
                self._patches.set(
                    owner, name, staticmethod(replacement) if isinstance(owner, type) else replacement
                )

    def _of(self, function: Any) -> Any:
        return self._replaced.get(id(function), (None, function))[1]
