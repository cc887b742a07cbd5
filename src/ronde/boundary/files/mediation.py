"""The meeting at a mutation: all ranks come, the main rank does it, all go on with its outcome."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ronde.boundary.caller import is_script
from ronde.boundary.files.announcing import Announce
from ronde.boundary.files.meeting import Meeting
from ronde.boundary.files.paths import Paths
from ronde.boundary.files.publications import Publications
from ronde.errors import PeerLost

__all__ = ["Mediation", "Outcome"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a mutation on the main rank.

    Attributes:
        operation, path: what was done and to what, by the main rank's name for it.
        value: result that the other ranks need.
        failure: the exception that the script gets, on every rank.
    """

    operation: str
    path: str
    value: Any = None
    failure: Exception | None = None


class Mediation:
    """State of file mediation on one rank, shared by the patched functions.

    Attributes:
        waiting_for: what this rank is waiting for at this moment, in words, for the launcher's report.
        notes: sentences for the user about what was made right without being asked.
        trackers: folders of packages whose own files are each rank's own.
    """

    def __init__(self, *, meeting: Meeting, rank: int, paths: Paths) -> None:
        self.paths = paths
        self.publications = Publications(meeting, is_main=rank == 0)
        self.is_main = rank == 0
        self.waiting_for: str | None = None
        self.notes: list[str] = []
        self.trackers: tuple[str, ...] = ()
        self._rank = rank
        self._meeting = meeting
        self._noticed = False
        self._depth = 0
        self._process = os.getpid()
        self._thread = threading.main_thread().ident

    def governs(self) -> bool:
        """Whether a call made here and now is the script's own: not a thread's, a worker's or nested."""
        in_step = self._depth == 0 and threading.get_ident() == self._thread and os.getpid() == self._process
        return in_step and not (self.trackers and self._in_tracker())

    def notice(self, path: Any, *, sure: bool = False) -> None:
        """Tell the user, once, that a thread of the script writes here: every rank's thread does.

        Args:
            sure: it is the script's doing; else it is when code of the script is behind this call.
        """
        if threading.get_ident() == self._thread or os.getpid() != self._process or self._noticed:
            return
        located = self.paths.locate(path)
        if located is None or self.paths.is_exempt(located) or not (sure or self._of_script()):
            return
        self._noticed = True
        self.notes.append(
            f"{located!r} is written by a thread, and so by every rank, because threads of ranks are not in "
            f"step; write it in the script's main thread"
        )

    @staticmethod
    def _of_script() -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if is_script(frame.f_code.co_filename):
                return True
            frame = frame.f_back
        return False

    def _in_tracker(self) -> bool:
        """Whether a tracker stands between this call and the script."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self.trackers):
                return True
            if is_script(name):
                return False
            frame = frame.f_back
        return False

    @contextmanager
    def unmediated(self) -> Iterator[None]:
        """File operations inside are this rank's own."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def meet(
        self,
        operation: str,
        located: str,
        act: Callable[[], Any],
        *,
        prepare: Callable[[], None] | None = None,
    ) -> Outcome:
        """Do `act` on the main rank alone, when every rank has come; return or raise alike everywhere.

        Args:
            located: the path by which the operation is known (`Paths.locate`).
            act: its result goes to the other ranks.
            prepare: done by the other ranks before the main rank acts and after all it did before.
        """
        with self.unmediated():
            self._barrier(operation, located)
            failure: Exception | None = None
            if prepare is not None:
                if not self.is_main:
                    failure = _failure_of(prepare)
                self._barrier(operation, located)
            outcome = self._act(operation, located, act) if self.is_main else self._hear(operation, located)
        if outcome.failure is not None:
            raise outcome.failure
        if failure is not None:
            raise failure
        return outcome

    def together(self, operation: str, located: str, act: Callable[[], Any]) -> Any:
        """Do `act` on every rank at once; raise the main rank's failure on all."""
        own: Exception | None = None
        value: Any = None
        with self.unmediated():
            self._note(operation, located)
            try:
                value = act()
            except Exception as failure:
                own = failure
            shared = self._share(
                Outcome(operation=operation, path=located, failure=_portable(own)) if self.is_main else None
            )
        if own is not None:
            raise own
        if shared.failure is not None:
            raise shared.failure
        return value

    def announcer(self, key: str) -> Announce:
        """The callback of an open file that is known as `key` on every rank."""

        def announce(closed: bool) -> None:
            # Threads flush when they please; only the script's own thread is in step on all ranks.
            if threading.get_ident() == self._thread and os.getpid() == self._process:
                self.publications.announce(key, closed)

        return announce

    def before_reading(self, located: str) -> None:
        """Wait until what the script wrote to `located` is there."""
        if self.publications.all_settled:
            return
        with self.unmediated():
            self._note("read", located)
            self.publications.before_reading(located)
            self.waiting_for = None

    def before_child(self) -> None:
        """Wait until everything that the script wrote is there."""
        if self.publications.all_settled or not self.governs():
            return
        with self.unmediated():
            self._note("start a process after writing to", "files")
            self.publications.before_child()
            self.waiting_for = None

    def _act(self, operation: str, located: str, act: Callable[[], Any]) -> Outcome:
        value: Any = None
        own: Exception | None = None
        try:
            value = act()
        except Exception as failure:
            own = failure
        self._share(Outcome(operation=operation, path=located, value=value, failure=_portable(own)))
        return Outcome(operation=operation, path=located, value=value, failure=own)

    def _hear(self, operation: str, located: str) -> Outcome:
        outcome = self._share(None)
        if not isinstance(outcome, Outcome) or outcome.operation != operation:
            theirs = (
                f"{outcome.operation} {outcome.path!r}" if isinstance(outcome, Outcome) else repr(outcome)
            )
            raise PeerLost(
                f"Rank {self._rank} came to {operation} {located!r} while the main rank came to {theirs}: "
                f"the ranks take different paths through the script."
            )
        if outcome.path != located:
            self.paths.add_alias(located, outcome.path)
            self.notes.append(
                f"File names differ between ranks (a time or a process id in them?): {located!r} on rank "
                f"{self._rank} stands for {outcome.path!r}, which the main rank wrote."
            )
        return outcome

    def _barrier(self, operation: str, located: str) -> None:
        self._note(operation, located)
        self._meeting.barrier()
        self.publications.settle()
        self.waiting_for = None

    def _share(self, outcome: Outcome | None) -> Any:
        shared = self._meeting.share(outcome)
        self.waiting_for = None
        return shared

    def _note(self, operation: str, located: str) -> None:
        self.waiting_for = f"all ranks to {operation} {located!r}"


def _failure_of(action: Callable[[], None]) -> Exception | None:
    try:
        action()
    except Exception as failure:
        return failure
    return None


def _portable(failure: Exception | None) -> Exception | None:
    """`failure` in a form that survives the way to another process."""
    if failure is None:
        return None
    try:
        copy = pickle.loads(pickle.dumps(failure))
    except Exception:
        copy = None
    if type(copy) is type(failure):
        return copy
    return RuntimeError(f"{type(failure).__name__}: {failure}")
