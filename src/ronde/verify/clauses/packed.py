"""Opens compressed files and archives, since their own bytes hold times."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["is_packed", "unpacked"]

_COMPRESSIONS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)


def is_packed(path: Path) -> bool:
    """Return whether a file begins like a compressed file, zip or tar archive."""
    return _opener(path) is not None or zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


@contextmanager
def unpacked(path: Path) -> Iterator[dict[str, Path] | None]:
    """Extract copies of the files inside, by name; None if damaged.

    The content of a merely compressed file has the name "".
    """
    with TemporaryDirectory(prefix="ronde-unpacked-") as place:
        try:
            found = dict(_unpack(path, Path(place)))
        except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError):
            found = None  # RuntimeError: an encrypted zip archive
        yield found


def _unpack(path: Path, place: Path) -> Iterator[tuple[str, Path]]:
    opener = _opener(path)
    if opener is not None:
        target = place / (path.stem or "contents")
        with opener(path, "rb") as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
        yield "", target
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for number, name in enumerate(archive.namelist()):
                if not name.endswith("/"):
                    with archive.open(name) as packed:
                        yield name, _copied(packed, place, number, name)
    else:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive):
                packed = archive.extractfile(member)
                if packed is not None:
                    yield member.name, _copied(packed, place, number, member.name)


def _copied(packed: Any, place: Path, number: int, name: str) -> Path:
    """Copy a member into a numbered folder, so that equal names stay apart."""
    target = place / str(number) / (Path(name).name or "contents")
    target.parent.mkdir()
    with target.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return target


def _opener(path: Path) -> Callable[..., Any] | None:
    with path.open("rb") as file:
        start = file.read(8)
    return next((opener for magic, opener in _COMPRESSIONS if start.startswith(magic)), None)
