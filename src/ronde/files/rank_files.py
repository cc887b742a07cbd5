"""The script's files as one rank has them: what all ranks change is changed by rank 0, when all have come."""

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

__all__ = ["Outcome", "RankFiles"]


class Outcome(NamedTuple):
    """What became of a change on rank 0; `failure` is what the script gets, on every rank."""

    operation: str
    path: str
    value: Any = None
    failure: Exception | None = None


class RankFiles:
    """What the replaced functions share.

    Attributes:
        is_zero: this is rank 0.
        callers: tells whose call a file operation is.
        overlay: what this rank has instead of files that rank 0 writes.
        notes: sentences for the user about what was made right without being asked.
        stopped: what is closed from now on is nobody's concern.
        history: records changes, where the run makes checkpoints.
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
        """Do `act` on rank 0 alone, when every rank has come; return or raise alike everywhere.

        Args:
            located: the path by which the operation is known (`Paths.locate`).
            act: its result goes to the other ranks.
            changed: the paths that it has changed, of what it returned; `located`, where that is not given.
            below: what lies in these is changed too.
            prepare: done by the other ranks before rank 0 acts and after all it did before.
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
            outcome = Outcome(operation, located, value, _portable(own))
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
        """What `act` returns or raises on rank 0, on every rank; it changes no file that is known here."""
        return self.once(operation, operation, act, changed=lambda _: ())

    def together(self, operation: str, located: str, act: Callable[[], Any]) -> Any:
        """Do `act` on every rank at once; raise rank 0's failure on all."""
        written = f"{operation}, written"
        recalled = None if self.history is None else self.history.recall(written, located)
        if recalled is not None:
            if recalled.failure is not None:
                raise recalled.failure
            return None
        with self.callers.unmediated():
            value, own = _tried(act)
            shared = self._comm.broadcast_object(Outcome(operation, located, None, _portable(own)))
        if self.history is not None:
            self.history.add(written, located, None, shared.failure, is_new=False)
        failure = own or shared.failure
        if failure is not None:
            raise failure
        return value

    def note(self, sentence: str) -> None:
        """Say it to the user at the end, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def mediated(self, path: Any) -> str | None:
        """Where it lies, if all ranks are to change it together here and now."""
        located = self.paths.locate(path) if self.callers.in_step() else None
        return None if located is None or self.paths.is_exempt(located) else located

    def note_read(self, path: Any) -> None:
        """The script reads what is there."""
        if self.history is not None and (located := self.mediated(path)) is not None:
            self.history.read(located)

    def place_to_write(self, path: Any, *, keep: bool = False, follow: bool = True) -> Any:
        """`path`, or where a thread or process of another rank than 0 writes in its stead."""
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
        """Where this rank has what is called `path`, as of this point of the script."""
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
        """The path without links, where this rank's threads may have something else there than is there."""
        located = None if self.is_zero or not self.callers.looks_aside() else self.paths.locate(path)
        if located is None or self.paths.is_exempt(located):
            return None
        with self.callers.unmediated():
            return self.overlay.resolve(located, last=follow)

    def asks_for_more(self) -> bool:
        """Whether a question may have another answer than that of the files as they are."""
        if self.history is not None and self.history.replaying:
            return True
        return bool(self._open or self._unclosed or self._aliases) or (
            not self.is_zero and self.callers.looks_aside()
        )

    def made_by_threads(self, name: str) -> bool:
        """Whether this is a file that threads or processes of the script have made or changed."""
        located = os.path.abspath(name)
        with self.callers.unmediated():
            found = self.overlay.resolve(located, last=True)
            return not self.paths.is_exempt(located) and self.overlay.changes(found)

    def opened(self, key: str, *, closes: bool = True) -> None:
        """All ranks have opened a file for writing; when it `closes`, `closed` will be called."""
        if closes:
            self._open[key] += 1
        else:
            self._unclosed.add(key)

    def writes(self) -> bool:
        """Whether what the script writes on this rank goes to the files."""
        return self.is_zero and not (self.history is not None and self.history.replaying)

    def closed(self, key: str) -> None:
        """The script has closed it: the ranks wait for one another, as anybody may read it now.

        What a thread or Python's collector closes does not count as closed, as it comes at any moment.
        """
        if self.stopped or self._comm.alone or not self.callers.in_step():
            return
        self._open -= Counter([key])
        if sys.exc_info()[0] is None:
            self._wait()
        else:  # one rank may have failed alone
            self._unclosed.add(key)

    def before_reading(self, located: str) -> None:
        """All ranks read this: wait for rank 0, if the script writes to it."""
        if self._open or self._unclosed:
            with self.callers.unmediated():
                key = os.path.realpath(located)
            if key in self._open or key in self._unclosed:
                self._wait()

    def before_child(self) -> None:
        """A process is about to start on all ranks: it must find what they have written."""
        if (self._open or self._unclosed) and self.callers.in_step():
            self._wait()

    def _forget(self, changed: Iterable[str], below: bool) -> None:
        """All ranks have changed these: what this rank has instead is past."""
        if self.callers.branched:
            for path in changed:
                for last in (False, True):  # a link, and where it leads
                    self.overlay.back(self.overlay.resolve(path, last=last), below=below)

    def _wait(self) -> None:
        with self.callers.unmediated():
            self._barrier()

    def _hear(self, operation: str, located: str) -> Outcome:
        outcome = self._comm.broadcast_object(None)
        met = isinstance(outcome, Outcome)
        # Files of one folder that ranks have named each in its own way are one.
        alike = met and os.path.dirname(outcome.path) == os.path.dirname(located)
        if not alike or outcome.operation != operation:
            theirs = f"{outcome.operation} {outcome.path!r}" if met else repr(outcome)
            raise PeerLost(
                f"Rank {self._comm.rank} came to {operation} {located!r} while rank 0 came to {theirs}: "
                f"the ranks take different paths through the script."
            )
        if outcome.path != located:
            self._aliases[located] = outcome.path
            self.note(
                f"File names differ between ranks (a time or a process id in them?): {located!r} on rank "
                f"{self._comm.rank} stands for {outcome.path!r}, which rank 0 wrote."
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
    """`failure` in a form that survives the way to another process."""
    try:
        copy = pickle.loads(pickle.dumps(failure))
    except Exception:
        copy = None
    if type(copy) is type(failure):
        return copy
    return RuntimeError(f"{type(failure).__name__}: {failure}")
