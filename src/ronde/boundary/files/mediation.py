"""The meeting at a mutation: all ranks come, the main rank does it, all go on with its outcome."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, TypeVar

from torch._guards import CompileContext

from ronde.boundary.caller import is_script, is_standard
from ronde.boundary.files.announcing import Announce
from ronde.boundary.files.aside import Aside
from ronde.boundary.files.beginnings import Beginnings
from ronde.boundary.files.meeting import Meeting
from ronde.boundary.files.named_paths import alike
from ronde.boundary.files.naming import called
from ronde.boundary.files.paths import Paths
from ronde.boundary.files.publications import Publications
from ronde.errors import PeerLost

__all__ = ["Mediation", "Outcome", "portable"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a mutation on the main rank.

    Attributes:
        operation, path: what was done and to what, by the main rank's name for it.
        value: result that the other ranks need.
        failure: the exception that the script gets, on every rank.
        position: how many changes of files the main rank's threads had told when it was done.
    """

    operation: str
    path: str
    value: Any = None
    failure: Exception | None = None
    position: int = 0


class _Depth(threading.local):
    """How deep a thread is in operations of some kind."""

    value = 0

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.value += 1
        try:
            yield
        finally:
            self.value -= 1


class Mediation:
    """State of file mediation on one rank, shared by the patched functions.

    Attributes:
        waiting_for: what this rank is waiting for at this moment, in words, for the launcher's report.
        notes: sentences for the user about what was made right without being asked.
        trackers: folders of packages whose own files are each rank's own.
        aside: where this rank's threads write, if it is not the main one.
        beginnings: what files held before the main rank's threads wrote to them.
        had_threads: the script has started threads on this rank.
    """

    def __init__(
        self,
        *,
        meeting: Meeting,
        rank: int,
        world_size: int,
        paths: Paths,
        aside: Aside,
        beginnings: Beginnings,
    ) -> None:
        self.paths = paths
        self.aside = aside
        self.beginnings = beginnings
        self.publications = Publications(meeting, is_main=rank == 0)
        self.is_main = rank == 0
        self.waiting_for: str | None = None
        self._collector: int | None = None
        self.notes: list[str] = []
        self.trackers: tuple[str, ...] = ()
        self._rank = rank
        self._alone = world_size == 1
        self._meeting = meeting
        self._depth, self._elsewhere = _Depth(), _Depth()
        self._process = os.getpid()
        self._thread = threading.main_thread().ident
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self.had_threads = False
        self._position = 0

    def governs(self) -> bool:
        """Whether a call made here and now is the script's own: not a thread's, a collector's or nested."""
        in_step = self._depth.value == 0 and threading.get_ident() == self._thread
        in_step = in_step and os.getpid() == self._process and not self.collecting()
        # torch's compiler holds a lock that ranks share while it writes, and they would wait for each other.
        in_step = in_step and CompileContext.try_get() is None
        return in_step and not (self.trackers and self._in_tracker())

    def in_thread(self) -> bool:
        """Whether a call made here and now is one of a thread of the script, or comes as unforeseen.

        That is what the script does when Python's collector ends an object of its (`__del__`).
        """
        if self._alone or self._depth.value or os.getpid() != self._process:
            return False
        if self.collecting():
            self.had_threads = True
            return True
        if threading.get_ident() == self._thread:
            return False
        if threading.current_thread() in self._threads:
            return True
        of_script = self._of_script()
        self.had_threads = self.had_threads or of_script
        return of_script

    def looks_aside(self) -> bool:
        """Whether a call made here and now is to see files as this rank's threads have them."""
        if self.is_main or self._depth.value or os.getpid() != self._process:
            return False
        return self.had_threads or self.in_thread()

    def place_to_write(self, path: Any, *, keep: bool = False, anew: bool = False) -> str | None:
        """Where a thread of the script is to write instead of `path`; None if there, as the main rank's does.

        Args:
            keep: what the file holds is kept and added to.
            anew: it is an error if the file is there already.
        """
        if not self.in_thread():
            return None
        located = self.paths.locate(path)
        if located is None or self.paths.is_exempt(located):
            return None
        with self.unmediated():
            # What is to be made anew is no link.
            found = self.resolve(located, last=not anew)
            if self.paths.is_exempt(found):
                return None
            if self.is_main:
                self.beginnings.makes(found)
                return None
            if keep:
                self.publications.before_reading(located)
            return self.aside.target(found, keep=keep or anew)

    def resolve(self, located: str, *, last: bool) -> str:
        """The path without links, as threads of this rank see them; see `Aside.resolve`."""
        if not self.is_main:
            return self.aside.resolve(located, last=last)
        if last:
            return os.path.realpath(located)
        return os.path.join(os.path.realpath(os.path.dirname(located)), os.path.basename(located))

    def reading(
        self,
        path: Any,
        act: Callable[[Any], T],
        *,
        follow: bool = True,
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """What `act` makes of what is called `path`: it is given where threads of this rank have that.

        See `Aside.asked`.

        Raises:
            FileNotFoundError: when it is not there for them.
        """
        looks = self.looks_aside()
        in_thread = not self.publications.all_settled and self.in_thread()
        located = self.paths.locate(path) if looks or in_thread else None
        if located is None or self.paths.is_exempt(located):
            return act(path)

        with self.unmediated():
            if in_thread:
                self.publications.before_reading(located)
            return self.reading_aside(located, path, act, follow=follow, undo=undo) if looks else act(path)

    def reading_aside(
        self,
        located: str,
        path: Any,
        act: Callable[[Any], T],
        *,
        follow: bool = True,
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """As `reading`, where this rank is known to look aside; `located` is the absolute path."""

        def act_there(place: str | None) -> T:
            if place is None:
                raise FileNotFoundError
            if place == located:
                return act(self.paths.renamed(path))
            with called({place: path}):
                return act(place)

        try:
            return self.aside.asked(located, act_there, follow=follow, undo=undo)
        except (FileNotFoundError, NotADirectoryError) as error:
            if error.filename is not None and os.fsdecode(error.filename) != os.fsdecode(path):
                raise
            found = self.resolve(located, last=follow)
            if self.aside.is_there(found):
                raise
            number = self.aside.absence(found)
            raise OSError(number, os.strerror(number), path) from None

    def kept(self, place: Any) -> Callable[[], str | None] | None:
        """Tells where a file that is read is kept, once the main rank's threads have changed it.

        Args:
            place: as `reading` gives it. None is told of a place that those never change.
        """
        path = self.paths.locate(place)
        if path is None or self.paths.is_exempt(path):
            return None

        def kept() -> str | None:
            with self.unmediated():
                self.beginnings.read()
                found = self.beginnings.was(path)
            return None if found == path else found

        return kept

    def met_over(self, located: str, *, follow: bool = True) -> None:
        """All ranks have changed this in the main thread: what threads did to it before is past.

        Args:
            follow: where the link leads, if it is one.
        """
        with self.unmediated():
            path = self.resolve(located, last=follow)
            self.beginnings.renew(path, self._position)
            self.aside.back(path)

    def met_in(self, located: str) -> None:
        """All ranks have made this folder in the main thread, or found it there."""
        with self.unmediated():
            path = self.resolve(located, last=True)
            self.beginnings.stand(path, self._position)
            self.aside.stand(path)

    def worked_on(self, paths: Iterable[str], position: int) -> None:
        """A program that a thread started was told of these, and has ended: what counts is what it left.

        It may have put an ending to a name, or taken one away.

        Args:
            position: how many changes of files the main rank's threads had told then.
        """
        with self.unmediated():
            self.beginnings.read()
            found = (self.resolve(path, last=True) for path in paths if not self.paths.is_exempt(path))
            for path in alike(found, self._names_inside):
                self.beginnings.renew(path, position)
                self.aside.back(path)

    def _names_inside(self, folder: str) -> list[str]:
        """Names in a folder, whatever they stand for, of files that are gone too."""
        try:
            names = os.listdir(folder)
        except OSError:
            names = []
        return [*names, *self.beginnings.changed_inside(folder), *self.aside.changed_inside(folder)]

    def remember(self, thread: threading.Thread) -> None:
        """A thread is about to start.

        It is the script's if that starts it by itself, or by a module of the interpreter (a pool, a timer).
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and is_standard(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and is_script(frame.f_code.co_filename):
            self._threads.add(thread)
            self.had_threads = True

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

    def elsewhere(self) -> AbstractContextManager[None]:
        """What this thread opens inside lies elsewhere than its name says."""
        return self._elsewhere.deeper()

    def is_elsewhere(self) -> bool:
        return self._elsewhere.value > 0

    def unmediated(self) -> AbstractContextManager[None]:
        """File operations inside, of this thread, are this rank's own."""
        return self._depth.deeper()

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
            self._position = outcome.position
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
                Outcome(operation=operation, path=located, failure=portable(own)) if self.is_main else None
            )
        if own is not None:
            raise own
        if shared.failure is not None:
            raise shared.failure
        return value

    def note(self, sentence: str) -> None:
        """Say it to the user at the end, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def tell(self, key: str, text: str) -> None:
        """Leave word for threads of other ranks."""
        self._meeting.tell(key, text)

    def told(self, key: str) -> str | None:
        """Word that was left, if there is any by now."""
        return self._meeting.told(key)

    def announcer(self, key: str, mode: str) -> Announce:
        """The callback of an open file that is known as `key` on every rank."""

        def announce(closed: bool) -> None:
            # Threads flush when they please; only the script's own thread is in step on all ranks.
            if threading.get_ident() != self._thread or os.getpid() != self._process:
                return
            # A collector comes at other moments on other ranks: what it closes is not counted.
            if closed and self.collecting():
                return
            self.publications.announce(key, closed)
            # A library may read it by itself, unseen. Not what grows line by line: closed often, read late.
            if closed and "a" not in mode:
                self._await(key, "close")

        return announce

    def on_collection(self, phase: str, _: Mapping[str, int]) -> None:
        """Python's collector begins or ends."""
        self._collector = threading.get_ident() if phase == "start" else None

    def collecting(self) -> bool:
        """Whether Python's collector is at work in this thread: it comes at other moments on other ranks."""
        return self._collector == threading.get_ident()

    def before_reading(self, located: str) -> None:
        """Wait until what the script wrote to `located` is there."""
        self._await(located, "read")

    def _await(self, located: str, operation: str) -> None:
        if self.publications.all_settled:
            return
        with self.unmediated():
            self._note(operation, located)
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
        outcome = Outcome(
            operation=operation,
            path=located,
            value=value,
            failure=portable(own),
            position=self.beginnings.position,
        )
        self._share(outcome)
        return dataclasses.replace(outcome, failure=own)

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


def portable(failure: Exception | None) -> Exception | None:
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
