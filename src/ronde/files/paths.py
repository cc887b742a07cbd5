"""Which paths are mediated, and what a path of this rank is called on rank 0."""

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
    """Folders that libraries fill for themselves, each process ready to find others at work there."""
    folders = [os.path.expanduser(folder) for folder in _CACHE_FOLDERS]
    folders += [environment[name] for name in _CACHE_VARIABLES if environment.get(name)]
    folders.append(os.path.join(tempfile.gettempdir(), f"torchinductor_{_user()}"))
    return tuple(folders)


def _user() -> str:
    """The user's name as torch's compiler writes it in the name of its folder."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())


def paths_of_rank(*exempt: str) -> Paths:
    """Those of one rank: `exempt`, the interpreter's folders and the caches of libraries are left alone."""
    # Not the prefix itself: a project may live in it.
    interpreter = [path for name, path in sysconfig.get_paths().items() if name != "data"]
    return Paths((*interpreter, site.getusersitepackages(), *caches(os.environ), *exempt))


class Paths:
    """Sorts paths into mediated ones and those of which each rank has, or shares carefully, its own.

    Args:
        exempt: folders (or files) that no rank mediates; those of the system are added.
    """

    def __init__(self, exempt: Iterable[str]) -> None:
        roots = [os.path.abspath(path) for path in (*_SYSTEM_FOLDERS, *exempt)]
        self._exempt = {*roots, *(os.path.realpath(root) for root in roots)}
        self._private: set[str] = set()
        self._aliases: dict[str, str] = {}

    def locate(self, path: Any) -> str | None:
        """Absolute form of a path by its name on rank 0; None for what is not a path."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        located = os.path.abspath(os.fsdecode(path))
        return self._translate(located) if self._aliases else located

    def renamed(self, path: Any) -> Any:
        """`path`, or its name on rank 0 where that is another one."""
        if not self._aliases or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        located = os.path.abspath(os.fsdecode(path))
        name = self._translate(located)
        if name == located:
            return path
        return os.fsencode(name) if isinstance(path, bytes) else name

    def is_exempt(self, located: str) -> bool:
        return (
            _root_of(located, self._exempt) is not None
            or _root_of(located, self._private) is not None
            or "/__pycache__" in located
        )

    def is_private(self, located: str) -> bool:
        """Whether this rank made it by `tempfile`; other ranks have another, of another name."""
        return _root_of(located, self._private) is not None

    def add_private(self, path: str | bytes) -> None:
        self._private.add(os.path.abspath(os.fsdecode(path)))

    def add_alias(self, own: str, main: str) -> None:
        """`own`, which was never made, is `main` from now on; so is everything below it.

        Where only a folder above differs in name, and was never made either, that folder is meant.
        """
        while own != main:
            parent, name = os.path.split(own)
            main_parent, main_name = os.path.split(main)
            if name != main_name or parent == main_parent or os.path.exists(parent):
                self._aliases[own] = main
                return
            own, main = parent, main_parent

    @property
    def has_aliases(self) -> bool:
        return bool(self._aliases)

    def _translate(self, located: str) -> str:
        root = _root_of(located, self._aliases)
        return located if root is None else self._aliases[root] + located[len(root) :]


def _root_of(located: str, roots: Any) -> str | None:
    """The longest of `roots` that is `located` or a folder above it."""
    if not roots:
        return None
    path = located
    while path:
        if path in roots:
            return path
        path = path[: path.rfind("/")] if "/" in path else ""
    return None
