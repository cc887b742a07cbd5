"""Mediates file operations on one rank: rank 0 makes changes, after a barrier."""

from __future__ import annotations

import errno
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ronde.comm.process_group import Comm
from ronde.errors import PeerLost
from ronde.files.callers import Callers
from ronde.files.history import FileHistory
from ronde.files.overlay import Overlay, called
from ronde.files.paths import Paths
from ronde.trace.temporary_folder import TemporaryFolders

__all__ = ["ChangeOutcome", "RankFiles"]


class ChangeOutcome(NamedTuple):
    """Outcome of a change on rank 0. `failure` is raised in the script, on every rank."""

    operation: str
    path: str
    value: Any = None
    failure: Exception | None = None


class RankFiles:
    """State of one rank that all replaced functions share.

    Attributes:
        is_zero: whether this is rank 0.
        callers: the classifier of callers of file operations.
        overlay: the substitute on this rank for files that rank 0 writes.
        notes: sentences for the user on silent corrections.
        stopped: whether files may be closed without a barrier from now on.
        history: record of changes in a run with checkpoints, else None.
    """

    def __init__(
        self,
        comm: Comm,
        paths: Paths,
        temporary: TemporaryFolders,
        shared: str | None,
        *,
        apart: bool = False,
    ) -> None:
        self.is_zero = comm.rank == 0
        self.paths = paths
        self.callers = Callers(alone=comm.world_size == 1, apart=apart)
        self.overlay = Overlay(comm.rank, temporary, paths.add_private, shared)
        self.notes: list[str] = []
        self.stopped = True
        self.history: FileHistory | None = None
        self._comm = comm
        self._open: Counter[str] = Counter()
        self._unclosed: set[str] = set()
        self._aliases: dict[str, str] = {}

    def once(
        self,
        operation: str,
        located: str,
        act: Callable[[], Any],
        *,
        changed: Callable[[Any], Iterable[str]] | None = None,
        below: bool = True,
        prepare: Callable[[], None] | None = None,
    ) -> Any:
        """Run `act` on rank 0 after a barrier, with the same outcome everywhere.

        Args:
            located: the path that identifies the operation (`Paths.locate`).
            act: the action; its result is sent to the other ranks.
            changed: function from its result to the changed paths; None for `located` alone.
            below: whether the content of these paths changes too.
            prepare: action of the other ranks before rank 0 acts and after all its earlier actions.
        """
        recalled = None if self.history is None else self.history.recall(operation, located)
        if recalled is not None:
            if recalled.failure is not None:
                raise recalled.failure
            return recalled.value
        failure: Exception | None = None
        with self.callers.unmediated():
            is_new = self.history is not None and not os.path.lexists(located)
            self._barrier()
            if prepare is not None:
                if not self.is_zero:
                    _, failure = _tried(prepare)
                self._barrier()
            value, own = _tried(act) if self.is_zero else (None, None)
            outcome = ChangeOutcome(operation, located, value, _portable(own))
            if not self.is_zero:
                outcome = self._hear(operation, located)
            if outcome.failure is None:
                self._forget([outcome.path] if changed is None else changed(outcome.value), below)
            if self.is_zero:
                self._comm.broadcast_object(outcome)
            if self.history is not None:
                self.history.add(operation, located, outcome.value, outcome.failure, is_new=is_new)
        failure = own or outcome.failure or failure
        if failure is not None:
            raise failure
        return outcome.value

    def alike(self, operation: str, act: Callable[[], Any]) -> Any:
        """Return or raise the outcome of rank 0's `act` on every rank. It must change no mediated file."""
        return self.once(operation, operation, act, changed=lambda _: ())

    def together(self, operation: str, located: str, act: Callable[[], Any]) -> Any:
        """Run `act` on every rank at once, and raise rank 0's failure everywhere."""
        written = f"{operation}, written"
        recalled = None if self.history is None else self.history.recall(written, located)
        if recalled is not None:
            if recalled.failure is not None:
                raise recalled.failure
            return None
        with self.callers.unmediated():
            value, own = _tried(act)
            shared = self._comm.broadcast_object(ChangeOutcome(operation, located, None, _portable(own)))
        if self.history is not None:
            self.history.add(written, located, None, shared.failure, is_new=False)
        failure = own or shared.failure
        if failure is not None:
            raise failure
        return value

    def note(self, sentence: str) -> None:
        """Add a note for the user, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def mediated(self, path: Any) -> str | None:
        """Return the absolute path, if all ranks are to change it together now."""
        located = self.paths.locate(path) if self.callers.in_step() else None
        return None if located is None or self.paths.is_exempt(located) else located

    def note_read(self, path: Any) -> None:
        """Record that the script reads a path."""
        if self.history is not None and (located := self.mediated(path)) is not None:
            self.history.read(located)

    def place_to_write(self, path: Any, *, keep: bool = False, follow: bool = True) -> Any:
        """Return `path`, or its overlay for a thread or process of another rank."""
        located = self.paths.locate(path) if self.callers.is_beside() else None
        if located is None or self.paths.is_exempt(located):
            return path
        with self.callers.unmediated():
            found = self.overlay.resolve(located, last=follow)
            if self.is_zero:
                self.overlay.tell(found)
            if self.is_zero or self.paths.is_exempt(found):
                return path
            return self.overlay.target(found, keep=keep)

    @contextmanager
    def reading(self, path: Any, *, follow: bool = True) -> Iterator[Any]:
        """Yield the actual path of `path` on this rank, as of this point."""
        located = self.mediated(path)
        if located is not None:
            if self.history is not None and self.history.hides(located):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.before_reading(located)
            path = self._aliases.get(located, path)
        found = self.found_aside(path, follow=follow)
        if found is None:
            yield path
            return
        with self.callers.unmediated():
            place = self.overlay.find(found)
        with called({place: path, found: path}):
            yield path if place == found else place

    def found_aside(self, path: Any, *, follow: bool = True) -> str | None:
        """Return the path without links if this rank's overlay may cover it, else None."""
        located = None if self.is_zero or not self.callers.looks_aside() else self.paths.locate(path)
        if located is None or self.paths.is_exempt(located):
            return None
        with self.callers.unmediated():
            return self.overlay.resolve(located, last=follow)

    def asks_for_more(self) -> bool:
        """Return whether a stat-like call may differ from the real files' answer."""
        if self.history is not None and self.history.replaying:
            return True
        return bool(self._open or self._unclosed or self._aliases) or (
            not self.is_zero and self.callers.looks_aside()
        )

    def made_by_threads(self, name: str) -> bool:
        """Return whether the script's threads or processes have made or changed this file."""
        located = os.path.abspath(name)
        with self.callers.unmediated():
            found = self.overlay.resolve(located, last=True)
            return not self.paths.is_exempt(located) and self.overlay.changes(found)

    def opened(self, key: str, *, closes: bool = True) -> None:
        """Record that all ranks have opened a file for writing. With `closes`, `closed` will be called."""
        if closes:
            self._open[key] += 1
        else:
            self._unclosed.add(key)

    def writes(self) -> bool:
        """Return whether this rank's writes go to the real files."""
        return self.is_zero and not (self.history is not None and self.history.replaying)

    def closed(self, key: str) -> None:
        """Record that the script has closed a file; ranks then wait for each other.

        Any of them may read it afterwards. A close by a thread or Python's garbage collector does not count,
        as it comes at any moment.
        """
        if self.stopped or self._comm.alone or not self.callers.in_step():
            return
        self._open -= Counter([key])
        if sys.exc_info()[0] is None:
            self._wait()
        else:  # a rank may have failed alone
            self._unclosed.add(key)

    def before_reading(self, located: str) -> None:
        """Wait for rank 0 before all ranks read a file that the script writes."""
        if self._open or self._unclosed:
            with self.callers.unmediated():
                key = os.path.realpath(located)
            if key in self._open or key in self._unclosed:
                self._wait()

    def before_child(self) -> None:
        """Wait for the ranks' writes before a process starts on all ranks."""
        if (self._open or self._unclosed) and self.callers.in_step():
            self._wait()

    def _forget(self, changed: Iterable[str], below: bool) -> None:
        """Drop this rank's overlay of paths that all ranks have changed."""
        if self.callers.branched:
            for path in changed:
                for last in (False, True):  # a link and its target
                    self.overlay.back(self.overlay.resolve(path, last=last), below=below)

    def _wait(self) -> None:
        with self.callers.unmediated():
            self._barrier()

    def _hear(self, operation: str, located: str) -> ChangeOutcome:
        outcome = self._comm.broadcast_object(None)
        met = isinstance(outcome, ChangeOutcome)
        # Ranks may have named files of one folder differently; these count as one.
        alike = met and os.path.dirname(outcome.path) == os.path.dirname(located)
        if not alike or outcome.operation != operation:
            theirs = f"{outcome.operation} {outcome.path!r}" if met else repr(outcome)
            raise PeerLost(
                f"Rank {self._comm.rank} came to {operation} {located!r} while rank 0 came to {theirs}: "
                f"the ranks take different paths through the script. [R190]"
            )
        if outcome.path != located:
            self._aliases[located] = outcome.path
            self.note(
                f"File names differ between ranks (a time or a process id in them?): {located!r} on rank "
                f"{self._comm.rank} stands for {outcome.path!r}, which rank 0 wrote. [R318]"
            )
        return outcome

    def _barrier(self) -> None:
        self._comm.barrier()
        self._unclosed.clear()


def _tried(action: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return action(), None
    except Exception as failure:
        return None, failure


def _portable(failure: Exception | None) -> Exception | None:
    """Return `failure` in a form that can be sent to another process."""
    try:
        copy = pickle.loads(pickle.dumps(failure))
    except Exception:
        copy = None
    if type(copy) is type(failure):
        return copy
    return RuntimeError(f"{type(failure).__name__}: {failure}")
