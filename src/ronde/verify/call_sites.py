"""Finds the line of the script that a call comes from, if any."""

from __future__ import annotations

import os
import sys
import tempfile
from types import FrameType

import torch

from ronde.trace.script_line import RONDE, is_library

__all__ = ["Sites"]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

# Frames between two functions of a script: decorators (`no_grad`, `autocast`), and calls of closures by an
# optimizer.
_TORCH_BETWEEN = tuple(
    _TORCH + name
    for name in (
        "utils/_contextlib.py",
        "amp/autocast_mode.py",
        "optim/",
        "_compile.py",
        "_dynamo/eval_frame.py",
    )
)
_RONDE_BETWEEN = tuple(
    RONDE + name
    for name in (
        "verify/",
        "runtime/",
        "testing/",
        # Steps that call the closure which the script handed to the optimizer.
        "optim/",
        "parallel/compute/fused_step.py",
        "parallel/servers/frozen_variance.py",
        "shards/sharded_update.py",
    )
)


class Sites:
    """Names call sites `file:line`, relative to the directory that the run was started in.

    Args:
        scratch, tree: the copies of that directory and of the folders around it.
    """

    def __init__(self, scratch: str, tree: str) -> None:
        self._root = os.path.realpath(scratch)
        self._tree = os.path.realpath(tree)
        self._temporary = os.path.join(os.path.realpath(tempfile.gettempdir()), "")
        self._kinds: dict[str, str] = {}

    def of(self, frame: FrameType | None) -> str | None:
        """Return the nearest script line above `frame`.

        None for calls inside torch, ronde, a model or a loader.

        Code inside a model's forward or a dataset sees this rank's rows only, and may: the law speaks of
        values that the script reads outside.
        """
        site: str | None = None
        nearest = True
        while frame is not None:
            name = frame.f_code.co_filename
            kind = self._kinds.get(name)
            if kind is None:
                kind = self._kinds[name] = self._kind(name)
            if kind == "inside" or (nearest and kind == "between"):
                return None
            if kind == "script" and site is None:
                site = f"{self._short(name)}:{frame.f_lineno}"
            nearest = False
            frame = frame.f_back
        return site

    def is_temporary(self, name: str) -> bool:
        """Return whether the file is generated code under a random name in `/tmp`.

        That is, in the folder for temporary files. The run itself may lie there too, as may the script and
        installed packages; these do not count.
        """
        path = os.path.realpath(name)
        if not path.startswith(self._temporary) or is_library(path):
            return False
        script = os.path.dirname(os.path.realpath(getattr(sys.modules["__main__"], "__file__", "")))
        if os.path.join(script, "") == self._temporary:  # other programs use folders of their own there
            return os.path.dirname(path) != script
        return not any(path.startswith(folder + os.sep) for folder in (self._tree, script))

    def _kind(self, name: str) -> str:
        return "installed" if self.is_temporary(name) else _kind(name)

    def _within(self, path: str) -> bool:
        return path.startswith(self._root + os.sep)

    def _short(self, name: str) -> str:
        path = os.path.abspath(name)
        return os.path.relpath(path, self._root) if self._within(path) else os.path.basename(path)


def _kind(name: str) -> str:
    """Return one of script, between, inside, installed (a library that the script calls)."""
    path = name if name.startswith("<") else os.path.abspath(name)
    if path.startswith(_TORCH_BETWEEN) or path.startswith(_RONDE_BETWEEN):
        return "between"
    if path.startswith((_TORCH, RONDE)):
        return "inside"
    if path.startswith("<") or is_library(path):
        return "installed"
    return "script"
