"""Classifies paths into mediated, exempt and private ones."""

from __future__ import annotations

import getpass
import os
import re
import site
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Paths", "caches", "paths_of_rank"]

_CACHE_VARIABLES = (
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR", "TRITON_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "HF_HOME", "HF_HUB_CACHE",
    "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH", "PYTHONPYCACHEPREFIX",
    "WANDB_CACHE_DIR", "PIP_CACHE_DIR",
)  # fmt: skip
_CACHE_FOLDERS = ("~/.cache", "~/.config", "~/.triton", "~/.nv", "~/.local/state")
_SYSTEM_FOLDERS = ("/dev", "/proc", "/sys")


def caches(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cache folders of libraries; libraries expect concurrent processes there."""
    folders = [os.path.expanduser(folder) for folder in _CACHE_FOLDERS]
    folders += [environment[name] for name in _CACHE_VARIABLES if environment.get(name)]
    folders.append(os.path.join(tempfile.gettempdir(), f"torchinductor_{_user()}"))
    return tuple(folders)


def _user() -> str:
    """Return the user's name as torch's compiler writes it in its folder's name."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # the user id has no name
        return str(os.getuid())


def paths_of_rank(*exempt: str) -> Paths:
    """Return the paths of one rank. Exempt are `exempt`, the interpreter's folders and libraries' caches."""
    # Not the prefix itself: a project may live in it.
    interpreter = [path for name, path in sysconfig.get_paths().items() if name != "data"]
    return Paths((*interpreter, site.getusersitepackages(), *caches(os.environ), *exempt))


class Paths:
    """Classifies paths: mediated, exempt, or private to this rank.

    Args:
        exempt: folders (or files) that no rank mediates; system folders are added.
    """

    def __init__(self, exempt: Iterable[str]) -> None:
        roots = [os.path.abspath(path) for path in (*_SYSTEM_FOLDERS, *exempt)]
        self._exempt = {*roots, *(os.path.realpath(root) for root in roots)}
        self._private: set[str] = set()

    @staticmethod
    def locate(path: Any) -> str | None:
        """Return the absolute form of a path; None for other objects."""
        return os.path.abspath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else None

    def is_exempt(self, located: str) -> bool:
        return _is_below(located, self._exempt) or self.is_private(located) or "/__pycache__" in located

    def is_private(self, located: str) -> bool:
        """Return whether this rank made it by `tempfile`, under a name of its own."""
        return _is_below(located, self._private)

    def add_private(self, path: str | bytes) -> None:
        self._private.add(os.path.abspath(os.fsdecode(path)))


def _is_below(located: str, roots: set[str]) -> bool:
    """Return whether one of `roots` is `located` or a folder above it."""
    while located:
        if located in roots:
            return True
        located = located[: located.rfind("/")] if "/" in located else ""
    return False
