"""The functions of `os` and `shutil` that change the file system."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["DESCRIBING", "DESCRIPTORS", "MAKING_FOLDERS", "OPERATIONS", "Operation"]

DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
"""Arguments by which a path is not from the working directory."""
MAKING_FOLDERS = ("mkdir", "makedirs")
DESCRIBING = ("chmod", "chown", "lchown", "utime", "setxattr", "removexattr", "copymode", "copystat")
"""Those that change what is said about a file, and not what it holds."""
_FOLLOWING = (
    *(name for name in DESCRIBING if name != "lchown"),
    "truncate",
    "copy",
    "copy2",
    "copyfile",
    "copytree",
    "makedirs",
    "make_archive",
    "unpack_archive",
)


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

    def follows(self, options: Mapping[str, Any]) -> bool:
        """Whether it follows a link in the path that it changes.

        Args:
            options: with which it is called.
        """
        asked = options.get("follow_symlinks", True) or self.name not in DESCRIBING
        return bool(asked) and self.name in _FOLLOWING


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
