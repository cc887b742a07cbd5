"""Mirror of a run's checkpoints in object stores, or other places of fsspec.

They are written to a folder of this host first and copied from there. An object store has no rename: the
manifest is copied last, and a folder without one is not a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ronde.errors import UsageError
from ronde.trace.checkpoint_manifest import MANIFEST, CheckpointManifest, is_checkpoint

__all__ = ["RemoteCheckpoints", "is_url"]


def is_url(place: str) -> bool:
    """Return whether a place is a URL (`s3://bucket/run`), not a local folder."""
    return "://" in place


class RemoteCheckpoints:
    """The checkpoints of one run at a URL.

    Args:
        url: address as fsspec takes it.

    Raises:
        UsageError: fsspec, or its package for this kind of place, is missing, or the place is not reached.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs

            self._fs: Any
            self._fs, self._root = url_to_fs(url)
            self._fs.exists(self._root)
        except ImportError as error:
            raise UsageError(
                f"--checkpoint {url} needs a package that is missing ({error}); install it [R516]"
            ) from None
        except Exception as error:
            raise UsageError(f"--checkpoint {url} cannot be reached: {_first_line(error)} [R516]") from None
        self._url = url

    def latest(self) -> CheckpointManifest | None:
        """Read the manifest of the newest intact checkpoint, or None."""
        for name in self._names():
            try:
                return CheckpointManifest.of_text(
                    self._fs.cat_file(f"{self._root}/{name}/{MANIFEST}").decode()
                )
            except (OSError, ValueError):
                continue
        return None

    def fetch(self, folder: Path) -> None:
        """Download the newest two checkpoints and the journal: one may be damaged.

        Raises:
            UsageError: the place is not reached any more.
        """
        folder.mkdir(parents=True, exist_ok=True)
        try:
            whole = [name for name in self._names() if self._fs.exists(f"{self._root}/{name}/{MANIFEST}")]
            for name in whole[:2]:
                (folder / name).mkdir(exist_ok=True)
                for file in ("state.pt", MANIFEST):
                    self._fs.get_file(f"{self._root}/{name}/{file}", str(folder / name / file))
            if whole:
                self._fs.get_file(f"{self._root}/journal", str(folder / "journal"))
        except OSError as error:
            raise UsageError(
                f"--checkpoint {self._url} cannot be read: {_first_line(error)} [R516]"
            ) from None

    def push(self, folder: Path, name: str, keep: int) -> None:
        """Copy one checkpoint of a folder, and the journal; on return it is there. Older ones are removed.

        Raises:
            OSError: the copy failed; earlier ones are there.
        """
        place = f"{self._root}/{name}"
        self._fs.makedirs(place, exist_ok=True)
        self._fs.put_file(str(folder / name / "state.pt"), f"{place}/state.pt")
        self._fs.put_file(str(folder / "journal"), f"{self._root}/journal")
        self._fs.put_file(str(folder / name / MANIFEST), f"{place}/{MANIFEST}")
        self._fs.invalidate_cache()
        for old in self._names()[keep:]:
            self._fs.rm(f"{self._root}/{old}", recursive=True)

    def _names(self) -> list[str]:
        """List the names of checkpoints, the newest first."""
        try:
            entries = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        names = (str(entry).rstrip("/").rpartition("/")[2] for entry in entries)
        return sorted((name for name in names if is_checkpoint(name)), reverse=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
