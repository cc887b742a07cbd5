"""Transfer of published versions of a model to the launcher's run directory.

A version is complete once its manifest, the last file, has arrived. Files that the host removes are removed
here, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import final

from ronde.launch.mirror import FileChunk

__all__ = ["PUBLISHED", "VersionSender", "newest_version", "take_version"]

# : Folder in the run directory, here and on the host.
PUBLISHED = "published"
_PIECE = 1 << 20
_VERSION = re.compile(r"version-(\d{1,18})\.json")
_FILE = re.compile(r"[a-z]+-\d+[\w.-]*")


def newest_version(run_directory: Path) -> int:
    """Return the number of the newest published version; 0 without one."""
    return max(_versions(run_directory / PUBLISHED), default=0)


def _versions(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(match[1]) for name in os.listdir(folder) if (match := _VERSION.fullmatch(name))]
    return []


@final
class VersionSender:
    """Versions of a host's run directory; later ones are sent, each once."""

    def __init__(self, run_directory: Path) -> None:
        self._folder = run_directory / PUBLISHED
        self._sent = {path.name for path in self._folder.glob("*")}

    def pieces(self) -> Iterator[FileChunk]:
        """Yield pieces of new versions, the oldest first, and names of removed files."""
        for version in sorted(_versions(self._folder)):
            name = f"version-{version}.json"
            if name not in self._sent:
                # It may be removed meanwhile, as newer ones exist.
                with contextlib.suppress(OSError, ValueError):
                    manifest = (self._folder / name).read_bytes()
                    for file in json.loads(manifest)["files"]:
                        yield from self._file(file)
                    yield FileChunk(f"{PUBLISHED}/{name}", 0, manifest)
                    self._sent.add(name)
        for name in [each for each in self._sent if not (self._folder / each).exists()]:
            self._sent.remove(name)
            yield FileChunk(f"{PUBLISHED}/{name}", None, b"")

    def _file(self, name: str) -> Iterator[FileChunk]:
        if name not in self._sent:
            with open(self._folder / name, "rb") as file:
                at = 0
                while data := file.read(_PIECE):
                    yield FileChunk(f"{PUBLISHED}/{name}", at, data)
                    at += len(data)
            self._sent.add(name)


def take_version(run_directory: Path, piece: FileChunk) -> None:
    """Write part of a file of a version, or remove it.

    Raises:
        OSError: the file cannot be written.
        ValueError: the file does not belong to a version.
    """
    folder, name = run_directory / PUBLISHED, piece.name.removeprefix(f"{PUBLISHED}/")
    if not _FILE.fullmatch(name):
        raise ValueError(f"{piece.name} is not a file of a version")
    if piece.at is None:
        (folder / name).unlink(missing_ok=True)
        if match := _VERSION.fullmatch(name):
            _remove_before(folder, int(match[1]))
        return
    folder.mkdir(exist_ok=True)
    if not _VERSION.fullmatch(name):
        if not piece.at:
            (folder / name).unlink(missing_ok=True)
        FileChunk(name, piece.at, piece.data).write_into(folder)
        return
    beside = folder / f".{name}-coming"
    beside.write_bytes(piece.data)
    os.replace(beside, folder / name)


def _remove_before(folder: Path, version: int) -> None:
    """Remove versions of earlier runs; versions from this one on do not need them."""
    files: dict[int, set[str]] = {}
    for number in _versions(folder):
        with contextlib.suppress(OSError, ValueError, KeyError):
            files[number] = set(json.loads((folder / f"version-{number}.json").read_bytes())["files"])
    used = {name for number, names in files.items() if number > version for name in names}
    for number, names in files.items():
        if number < version:
            for name in {f"version-{number}.json", *(names - used)}:
                if _FILE.fullmatch(name):
                    (folder / name).unlink(missing_ok=True)
