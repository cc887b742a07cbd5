"""Patching a module when the script imports it, and not before."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["LatePatches"]

Patch = Callable[[ModuleType], None]


class LatePatches:
    """A finder that finds nothing by itself: it lets the others find, and patches what was executed.

    Args:
        patches: what to do to a module, by its full name.
    """

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = dict(patches)
        self._searching: set[str] = set()

    def install(self) -> None:
        """Patch what is imported already; watch for the rest."""
        for name, patch in self._patches.items():
            module = sys.modules.get(name)
            if module is not None:
                patch(module)
        sys.meta_path.insert(0, self)  # pyright: ignore[reportArgumentType]

    def uninstall(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Part of the protocol of `sys.meta_path`."""
        patch = self._patches.get(name)
        if patch is None or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            self._patch_after(spec.loader, patch)
        return spec

    def _patch_after(self, loader: Any, patch: Patch) -> None:
        execute = loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                patch(module)

        loader.exec_module = execute_and_patch
