"""Patches a library's module when the script imports it, and not before."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ronde.patching.caller import is_users_module

__all__ = ["LatePatches", "found_in"]

Patch = Callable[[ModuleType], None]


class LatePatches:
    """A finder on `sys.meta_path` that patches modules which other finders find.

    A module of the user's own that has the name of a library's is left unchanged.

    Args:
        patches: functions that patch a module, by its full name. Versions and substitutes of a library may
            lack any attribute, so each patch passes over absent ones (`found_in`).
    """

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = dict(patches)
        self._searching: set[str] = set()

    def install(self) -> None:
        """Patch imported modules now, and others on import."""
        for name in self._patches:
            module = sys.modules.get(name)
            if module is not None:
                self._patch(name, module)
        sys.meta_path.insert(0, self)  # pyright: ignore[reportArgumentType]

    def uninstall(self) -> None:
        """Stop watching imports; patched modules stay patched."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module's spec, as part of the protocol of `sys.meta_path`."""
        if name not in self._patches or name in self._searching:
            return None
        self._searching.add(name)
        try:
            others = (each for each in sys.meta_path if each is not self)
            spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            self._patch_after(spec.loader, name)
        return spec

    def _patch_after(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        @functools.wraps(execute)
        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            # A zip archive has one loader for all of its modules.
            if module.__name__ == name and self in sys.meta_path:
                self._patch(name, module)

        loader.exec_module = execute_and_patch

    def _patch(self, name: str, module: ModuleType) -> None:
        if not is_users_module(module):
            self._patches[name](module)


def found_in(module: ModuleType, path: str) -> tuple[Any, str, Any] | None:
    """Return owner, last name and value of a dotted path in a module.

    The owner is a module or a class. Returns None if it is absent.

    >>> import os
    >>> found_in(os, "path.join") == (os.path, "join", os.path.join), found_in(os, "path.no.join")
    (True, None)
    """
    owner, name, value = None, "", module
    for name in path.split("."):
        owner, value = value, getattr(value, name, None)
        if value is None or not isinstance(owner, (ModuleType, type)):
            return None
    return owner, name, value
