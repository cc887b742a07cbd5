"""Checkpoints of one run in a folder: each whole or not there.

    DIR/journal                  values read by the script, of all checkpoints
    DIR/step-00000120/state.pt   state, as torch.save writes it
    DIR/step-00000120/manifest.json

A checkpoint is written under a name that begins with a dot, made durable, and renamed. Its manifest has the
checksum of the state and says how much of the journal belongs to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from ronde.checkpoint.journal import JournalEntry, JournalError, begins_journal, read_entries
from ronde.checkpoint.remote_checkpoints import RemoteCheckpoints
from ronde.checkpoint.state import State
from ronde.errors import UsageError
from ronde.trace.checkpoint_manifest import MANIFEST, CheckpointManifest, checkpoint_name, checkpoints_in
from ronde.trace.whole_file import sync

__all__ = ["NoCheckpoint", "Store", "newest", "newest_whole", "read_checkpoint", "read_journal"]

Read = TypeVar("Read")


class NoCheckpoint(UsageError):
    """Raised for a folder without an intact checkpoint."""


class Store:
    """Writer of checkpoints.

    Args:
        folder: folder of the run; made if it does not exist.
        keep: number of checkpoints that are kept, the newest.
        journal_bytes: bytes of the resumed checkpoint's journal; later bytes of the file are removed.
        mirror: place to which each is copied.

    Raises:
        UsageError: the folder cannot be written, or has a file of another program's in the journal's place.
    """

    def __init__(
        self, folder: Path, *, keep: int, journal_bytes: int = 0, mirror: RemoteCheckpoints | None = None
    ) -> None:
        self._folder, self._keep, self._mirror = folder, keep, mirror
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".step-*"):
                shutil.rmtree(left, ignore_errors=True)
            journal = folder / "journal"
            if journal.exists() and not begins_journal(_head(journal)):
                raise UsageError(
                    f"--checkpoint {folder}: the file journal in it is not one of ronde's, and would be "
                    "overwritten; choose another folder [R503]"
                )
            # Unbuffered: nothing of a failed write is written later. Open as long as the run.
            self._journal = open(journal, "ab", buffering=0)  # noqa: SIM115
            self._journal.truncate(journal_bytes)
            self._journal_bytes = journal_bytes
            # Blocks of the journal that could not be appended.
            self._owed = b""
        except OSError as error:
            raise UsageError(f"--checkpoint {folder} cannot be written: {error.strerror} [R503]") from None

    def write(self, manifest: CheckpointManifest, state: State, content: bytes) -> None:
        """Append to the journal and write a checkpoint, durably.

        On return both survive a loss of power.

        Raises:
            OSError: the disk is full or gone; the checkpoints before are whole.
        """
        self._owed += content
        self._append()
        name = checkpoint_name(manifest.step)
        beside = self._folder / f".{name}-{os.getpid()}"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            with open(beside / "state.pt", "wb") as file:
                hashing: Any = _Hashing(file)
                torch.save(state, hashing)
                file.flush()
                os.fsync(file.fileno())
            whole = dataclasses.replace(
                manifest, journal_bytes=self._journal_bytes, digest=hashing.digest.hexdigest()
            )
            with open(beside / MANIFEST, "w") as text:
                json.dump(dataclasses.asdict(whole), text, indent=1)
                text.flush()
                os.fsync(text.fileno())
            shutil.rmtree(self._folder / name, ignore_errors=True)
            os.rename(beside, self._folder / name)
            sync(self._folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        self._prune()
        if self._mirror is not None:
            self._mirror.push(self._folder, name, self._keep)

    def _append(self) -> None:
        """Append pending blocks to the journal, all or nothing."""
        try:
            rest = memoryview(self._owed)
            while rest:
                rest = rest[self._journal.write(rest) :]
            os.fsync(self._journal.fileno())
        except OSError:
            self._journal.truncate(self._journal_bytes)
            raise
        self._journal_bytes += len(self._owed)
        self._owed = b""

    def _prune(self) -> None:
        for _, folder in list(checkpoints_in(self._folder))[self._keep :]:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._journal.close()


def newest(
    folder: Path,
    tell: Callable[[str], object],
    owner: Callable[[CheckpointManifest, State], int] = lambda *_: 0,
) -> tuple[CheckpointManifest, State, list[JournalEntry]]:
    """Read the newest intact checkpoint of a folder; `tell` gets messages about damaged ones.

    Args:
        owner: returns the rank of the journal to read.

    Raises:
        NoCheckpoint: the folder has no intact checkpoint.
    """

    def read(place: Path) -> tuple[CheckpointManifest, State, list[JournalEntry]]:
        manifest, state = read_checkpoint(place)
        return manifest, state, read_entries(read_journal(place, manifest), owner(manifest, state))

    found = newest_whole(folder, tell, read)
    if found is None:
        raise NoCheckpoint(f"no checkpoint in {folder} is whole; choose another folder to begin anew [R513]")
    return found


def newest_whole(folder: Path, tell: Callable[[str], object], read: Callable[[Path], Read]) -> Read | None:
    """Apply `read` to the newest checkpoint that it can read.

    `tell` gets messages about newer, damaged ones.
    """
    for step, place in checkpoints_in(folder):
        try:
            return read(place)
        except (OSError, ValueError, JournalError, RuntimeError) as error:
            tell(
                f"the checkpoint of step {step} in {folder} is damaged ({error}); the one before it is "
                "taken [R511]"
            )
    return None


def read_checkpoint(place: Path) -> tuple[CheckpointManifest, State]:
    """Read a checkpoint without its journal.

    Raises:
        OSError, ValueError, RuntimeError: it is damaged.
    """
    manifest = CheckpointManifest.read(place)
    digest = hashlib.sha256()
    with open(place / "state.pt", "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != manifest.digest:
        raise ValueError("its state differs from what was written [R511]")
    # A checkpoint is trusted as the script is that it belongs to.
    return manifest, torch.load(place / "state.pt", map_location="cpu", weights_only=False)


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def read_journal(place: Path, manifest: CheckpointManifest) -> bytes:
    """Return the part of the journal that belongs to a checkpoint.

    Raises:
        OSError, ValueError, JournalError: it is damaged.
    """
    content = (place.parent / "journal").read_bytes()[: manifest.journal_bytes]
    if len(content) != manifest.journal_bytes:
        raise ValueError(f"its journal has {len(content)} of {manifest.journal_bytes} bytes [R511]")
    count = len(read_entries(content))
    if count != manifest.entries:
        raise ValueError(f"its journal has {count} of {manifest.entries} entries [R511]")
    return content


class _Hashing:
    """A file that is written sequentially, with its checksum."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()
