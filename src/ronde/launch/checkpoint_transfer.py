"""Transfer of checkpoints between the launcher's folder and hosts that do not see it.

Rank 0 writes into the run directory of its host, and each checkpoint is copied from there to the launcher's
folder. To resume, the launcher sends its checkpoints into the run directory of each such host before a rank
is started. The manifest is sent last: a checkpoint without one is incomplete.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, final

from ronde.errors import UsageError
from ronde.launch.mirror import FileChunk
from ronde.trace.checkpoint_manifest import MANIFEST, CheckpointManifest, checkpoints_in
from ronde.trace.whole_file import sync

__all__ = [
    "CheckpointReceiver",
    "CheckpointSender",
    "carried_folder",
    "mark_folder",
    "sees_mark",
    "take_brought",
]

_PIECE = 1 << 20
_JOURNAL, _STATE = "journal", "state.pt"
_FILE = re.compile(rf"step-\d{{8,}}/({re.escape(_STATE)}|{re.escape(MANIFEST)})|{_JOURNAL}")
#: The newest one may be damaged, so the one before it is sent, too.
_SENT_TO_GO_ON = 2


def carried_folder(run_directory: Path) -> Path:
    """Return the folder for checkpoints on a host that does not see the launcher's."""
    return run_directory / "checkpoints"


@contextlib.contextmanager
def mark_folder(folder: str) -> Iterator[str]:
    """Make a file that shows other hosts whether they see this folder.

    Yields its path or "".

    Raises:
        UsageError: the folder cannot be written.
    """
    if not folder:
        yield ""
        return
    mark = Path(folder, f".launcher-{os.urandom(8).hex()}")
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise UsageError(f"--checkpoint {folder} cannot be written: {error.strerror} [R503]") from None
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)


def sees_mark(mark: str) -> bool:
    """Return whether this host sees the marked folder; True without a mark."""
    if not mark:
        return True
    with contextlib.suppress(OSError):
        os.listdir(os.path.dirname(mark))  # listing the folder refreshes the cache of NFS
    return os.path.exists(mark)


@final
class CheckpointSender:
    """Sender of a folder's checkpoints, each once.

    Args:
        folder: place of checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, bytes] = {}
        self._journal = 0

    def pass_over(self) -> None:
        """Mark all present checkpoints as sent, since they came from the launcher."""
        for _, place in checkpoints_in(self._folder):
            with contextlib.suppress(OSError):
                self._sent[place.name] = (place / MANIFEST).read_bytes()

    def pieces(self) -> Iterator[FileChunk]:
        """Yield the pieces of complete checkpoints not sent yet, the oldest first."""
        for _, place in reversed(list(checkpoints_in(self._folder))[:_SENT_TO_GO_ON]):
            # It may be removed meanwhile, as a newer one exists.
            with contextlib.suppress(OSError, ValueError):
                yield from self._of_one(place)

    def nbytes(self) -> int:
        """Bytes of the files that are sent to resume."""
        files = (
            file
            for _, place in list(checkpoints_in(self._folder))[:_SENT_TO_GO_ON]
            for file in place.iterdir()
        )
        return sum(file.stat().st_size for file in files)

    def _of_one(self, place: Path) -> Iterator[FileChunk]:
        text = (place / MANIFEST).read_bytes()
        if self._sent.get(place.name) == text:
            return
        end = CheckpointManifest.of_text(text.decode()).journal_bytes
        with open(place / _STATE, "rb") as state:
            yield from _contents(f"{place.name}/{_STATE}", state, 0, os.fstat(state.fileno()).st_size)
        with open(self._folder / _JOURNAL, "rb") as journal:
            yield from _contents(_JOURNAL, journal, self._journal, end)
        yield FileChunk(f"{place.name}/{MANIFEST}", 0, text)
        self._sent[place.name], self._journal = text, max(self._journal, end)


def _contents(name: str, file: BinaryIO, begin: int, end: int) -> Iterator[FileChunk]:
    file.seek(begin)
    for at in range(begin, end, _PIECE):
        yield FileChunk(name, at, file.read(min(_PIECE, end - at)))


@final
class CheckpointReceiver:
    """Receiver of checkpoints into a folder.

    Args:
        keep: number of checkpoints that are kept, the newest.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def take(self, piece: FileChunk) -> None:
        """Write a piece; the last one of a checkpoint makes it complete and durable.

        Raises:
            OSError: a file cannot be written.
            ValueError: the file does not belong to a checkpoint.
        """
        if not _FILE.fullmatch(piece.name):
            raise ValueError(f"{piece.name} is not a file of a checkpoint")
        self._folder.mkdir(parents=True, exist_ok=True)
        name, _, file = piece.name.rpartition("/")
        if not name:
            piece.write_into(self._folder)
            return
        beside = self._folder / f".{name}-coming"
        if file == _STATE and piece.at == 0:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
        FileChunk(file, piece.at, piece.data).write_into(beside)
        if file == MANIFEST:
            for path in (beside / _STATE, beside / MANIFEST, self._folder / _JOURNAL):
                sync(path)
            shutil.rmtree(self._folder / name, ignore_errors=True)
            beside.rename(self._folder / name)
            sync(self._folder)
            for _, old in list(checkpoints_in(self._folder))[self._keep :]:
                shutil.rmtree(old, ignore_errors=True)


def take_brought(run_directory: Path, pieces: Iterable[FileChunk]) -> str:
    """Write checkpoints into a host's run directory; return an error or ""."""
    folder = carried_folder(run_directory)
    shutil.rmtree(folder, ignore_errors=True)
    target, problem = CheckpointReceiver(folder, keep=_SENT_TO_GO_ON), ""
    for piece in pieces:
        if not problem:
            try:
                target.take(piece)
            except OSError as error:
                problem = f"{folder}: {error.strerror}"
    return problem
