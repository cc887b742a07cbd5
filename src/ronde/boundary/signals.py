"""Signals that the script handles: its handler runs at the same place of the script on all ranks.

A signal reaches the ranks at different places of the script. A handler that sets a flag, at which the loop
saves and leaves, would make them leave one step apart. So while the script trains, a signal is only counted
when it comes; before each optimizer step a rank writes its counts on a board, reads those that all ranks had
at the step before, and calls the handler if some rank had received the signal since. Where no optimizer has
stepped yet, as where the script updates weights itself, a backward that begins is such a step.

A rank comes to a step when it has the gradients of all ranks, which have then all come to the step before: so
nobody waits for what is read. Where that is not so (an optimizer that steps without gradients of its own, a
device that works on while its host is ahead), it waits a little.

Between steps (an evaluation) ranks hear of counts in the collectives by which they gather what the script
reads: what one has received goes along with the next, and after it all know alike. Nothing is called there,
in the midst of an operation, but at the next place of the script that all come to: a call of a model, the
next batch of a loader, a backward, a step.

What has been received and not handled when none of these comes for long (the end of the script) is handled as
in plain python, wherever the rank is.
"""

from __future__ import annotations

import _thread
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import get_ident
from time import monotonic, sleep  # bound here: the module's own are replaced for scripts
from types import FrameType
from typing import Any

from ronde.boundary.caller import called_by_script, is_script
from ronde.boundary.caught import is_caught
from ronde.boundary.patches import Patches
from ronde.trace.signal_board import SignalBoard

__all__ = ["COUNTED", "HandledSignals"]

# Those that are sent from outside, and that the launcher passes on. An alarm is not: it is the script's own
# way to end what takes too long, and comes too late if it waits.
COUNTED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_PLACES = {int(number): place for place, number in enumerate(COUNTED)}
# Libraries that train for the script, and save at a signal.
_TRAINERS = ("lightning.", "pytorch_lightning.", "transformers.")
# How long a signal waits for steps or collectives: some of the latest length, and never so long that the job
# is killed first (batch systems allow half a minute).
_STEPS, _LEAST_S, _MOST_S = 3.0, 3.0, 20.0
# The same for Ctrl-C in a script that does not say what is to happen then.
_BRIEF_S = 0.5
# How long a rank waits for others to come to the step before its own.
_PATIENCE_S, _LOOK_EVERY_S = 2.0, 0.0005
# How long until it is asked again whether execution is in the script.
_LOOK_AGAIN_S = 0.05

Handler = Callable[[int, FrameType | None], Any]


class _Counting:
    """What the interpreter calls in the place of the script's handler."""

    def __init__(self, signals: HandledSignals, handler: Handler) -> None:
        self.handler = handler
        self._signals = signals

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._signals.receive(number, frame, self.handler)


class HandledSignals:
    """Replaces the functions by which a script says how it handles signals.

    Args:
        open_board: shared by all ranks.
        alone: whether this rank is in a debugger, and the others are not.
        in_script: whether execution is where the script's code does what all ranks do: a handler may save.
        at_next_place: has a function called wherever all ranks come to next, until it is given None.

    Attributes:
        training: whether a backward has begun; before, no step may come for long, and a signal is handled as
            it comes.
    """

    def __init__(
        self,
        open_board: Callable[[], SignalBoard],
        alone: Callable[[], bool],
        in_script: Callable[[], bool],
        at_next_place: Callable[[Callable[[], None] | None], None],
    ) -> None:
        self.training = False
        self._open_board = open_board
        self._alone = alone
        self._in_script = in_script
        self._at_next_place = at_next_place
        self._board: SignalBoard | None = None
        self._process = os.getpid()
        self._thread = get_ident()
        self._step = 0
        self._stepped = False
        self._collective = 0
        self._untold = False
        self._received = [0] * len(COUNTED)
        self._handled = [0] * len(COUNTED)
        # What all ranks know alike that some rank has received.
        self._known: tuple[int, ...] = (0,) * len(COUNTED)
        self._scripts: dict[int, Any] = {}
        self._overdue: set[int] = set()
        self._own: set[int] = set()
        self._came = self._took = self._met = 0.0
        self._ended = False
        self._plain: Callable[[int], Any] = signal.getsignal

    def install(self, patches: Patches) -> None:
        plain: Callable[[int, Any], Any] = signal.signal

        @functools.wraps(plain)
        def set_handler(signalnum: int, handler: Any) -> Any:
            if not self._in_step() or signalnum not in _PLACES:
                return _own(plain(signalnum, handler))
            self._handle_pending(signalnum)
            if called_by_script(or_by=_TRAINERS):
                self._scripts[signalnum] = handler
            # A library that has had one of its own for a while puts the script's back.
            if handler == self._scripts.get(signalnum) and self._counts(handler):
                handler = _Counting(self, handler)
            else:
                self._overdue.discard(signalnum)
            return _own(plain(signalnum, handler))

        @functools.wraps(self._plain)
        def get_handler(signalnum: int) -> Any:
            return _own(self._plain(signalnum))

        # Python's own handler raises KeyboardInterrupt, at which scripts save and leave, or stop training.
        self._scripts[signal.SIGINT] = signal.default_int_handler
        self._install_sending(patches)
        patches.set(signal, "signal", set_handler)
        patches.set(signal, "getsignal", get_handler)

    def _install_sending(self, patches: Patches) -> None:
        """What a script sends to itself all ranks do at the same place, so it comes there."""
        plain_raise, plain_kill = signal.raise_signal, os.kill

        @functools.wraps(plain_raise)
        def raise_signal(signalnum: int, /) -> None:
            with self._expected(signalnum):
                plain_raise(signalnum)

        @functools.wraps(plain_kill)
        def kill(pid: int, sig: int, /) -> None:
            with self._expected(sig) if pid == self._process else nullcontext():
                plain_kill(pid, sig)

        patches.set(signal, "raise_signal", raise_signal)
        patches.set(os, "kill", kill)

    @contextmanager
    def _expected(self, number: int) -> Iterator[None]:
        """Inside, the script sends itself this signal, which comes by the end."""
        if number in _PLACES and self._in_step() and isinstance(self._plain(number), _Counting):
            self._own.add(number)
        try:
            yield
        finally:
            self._own.discard(number)

    def uninstall(self) -> None:
        """From here on signals are handled as they come; the functions are the register's to put back."""
        self._ended = True
        self._at_next_place(None)
        board, self._board = self._board, None
        if board is not None:
            board.close()

    def receive(self, number: int, frame: FrameType | None, handler: Handler) -> None:
        """A signal has come that `handler` is for."""
        if not self._in_step() or number in self._own:
            self._own.discard(number)
            handler(number, frame)
            return
        place = _PLACES[number]
        if number in self._overdue:
            self._overdue.discard(number)
        else:
            self._received[place] += 1
            self._untold = True
            if self.training and not self._alone():
                unexpected = handler is signal.default_int_handler and not is_caught(
                    frame, is_scripts=_may_save
                )
                patience = min(max(_LEAST_S, _STEPS * self._took), _MOST_S)
                self._handle_later(number, _BRIEF_S if unexpected else patience)
                return
            if not self.training and self._board is not None:
                self._board.write(self._step, self._received)
        if self._in_script() or self._alone():
            self._handle(number, self._received[place], frame)
        else:  # inside a model, or where samples are loaded: what the handler writes would be every rank's
            self._handle_later(number, _LOOK_AGAIN_S)

    def before_step(self) -> None:
        """An optimizer is about to step, on all ranks: the place where they handle what has come."""
        self._stepped = True
        self._come_to_step()

    def before_backward(self) -> None:
        """A backward is about to begin, on all ranks: as good a place where no optimizer steps."""
        self.training = True
        if not self._stepped:
            self._come_to_step()
        elif not self._alone():
            self._handle_known()

    def begins(self, number: int) -> None:
        """A collective is about to begin in which all ranks hear of each other."""
        if self._board is not None and get_ident() == self._thread:
            self._collective = number
            if self._untold:
                self._untold = False  # before they are read: a signal may come just then
                self._untold = not self._board.notices.write(number, self._received)

    def ends(self, number: int) -> None:
        """A collective is over.

        If it is the one that was begun last, all ranks have come to it, and none knows more than it tells.
        """
        if number != self._collective or self._board is None or get_ident() != self._thread:
            return
        now = monotonic()
        if now - self._met > self._took:
            self._took = now - self._met
        self._met = now
        most = self._board.notices.most(number)
        if most is not None:
            self._know(most)

    def _come_to_step(self) -> None:
        self.training = True
        if self._alone():
            return
        self._step += 1
        if self._board is not None:
            now = monotonic()
            self._took, self._came, self._met = now - self._came, now, now
            self._board.write(self._step, self._received)
            self._know(self._received_before(self._board))
            self._handle_known()

    def _received_before(self, board: SignalBoard) -> Sequence[int]:
        """Of each signal the most that any rank had received at the step before."""
        begun = 0.0
        while (most := board.most(self._step - 1)) is None:
            begun = begun or monotonic()
            if monotonic() - begun > _PATIENCE_S:
                return self._known
            sleep(_LOOK_EVERY_S)
        return most

    def _know(self, most: Sequence[int]) -> None:
        """From here on all ranks know alike that so many were received."""
        known = tuple(map(max, self._known, most))
        if known != self._known:
            self._known = known
            self._at_next_place(self._handle_known)

    def _handle_known(self) -> None:
        """At a place that all ranks come to: what some of them has received each of them handles.

        If a handler raises, the others are called at the next one.
        """
        for number, count in zip(COUNTED, self._known, strict=True):
            self._handle(number, count, None)
        self._at_next_place(None)

    def _handle(self, number: int, count: int, frame: FrameType | None) -> None:
        """Call the script's handler if that is more often than was seen to: what came together is one call.

        So it is for the system, and launchers pass on what ranks have got already.
        """
        place = _PLACES[number]
        if self._handled[place] < count:
            self._handled[place] = count
            counting = self._plain(number)
            if isinstance(counting, _Counting):
                counting.handler(number, frame or _frame_of_script())

    def _in_step(self) -> bool:
        """In another thread nobody sets handlers, and a fork (a worker that loads samples) is not in step."""
        main = threading.current_thread() is threading.main_thread()
        return main and not self._ended and os.getpid() == self._process

    def _handle_pending(self, number: int) -> None:
        """Before another handler takes its place, the present one is called for what has come."""
        self._handle(number, self._received[_PLACES[number]], None)

    def _counts(self, handler: Any) -> bool:
        """Whether calls of this handler are to be counted; the first such opens the board."""
        if not callable(handler):
            return False
        if self._board is None:
            try:
                self._board = self._open_board()
            except OSError:  # a full disk, say: signals are handled as they come
                return False
            self._came = self._met = monotonic()
            self._board.write(self._step, self._received)
        return True

    def _handle_later(self, number: int, patience: float) -> None:
        place = _PLACES[number]
        if self._received[place] > self._handled[place]:  # else it has been, as another rank had it first
            # Not by `threading`, one of whose locks the main thread may hold that was interrupted.
            _thread.start_new_thread(self._remind, (number, place, patience))

    def _remind(self, number: int, place: int, patience: float) -> None:
        """In a thread: if no place has come in time, have the handler called where the main thread is."""
        sleep(patience)
        if self._known[place] >= self._received[place]:
            sleep(patience)  # all ranks know of it, and are about to handle it together
        pending = self._received[place] > self._handled[place] and not self._ended
        if pending and isinstance(self._plain(number), _Counting):
            self._overdue.add(number)
            main = threading.main_thread().ident
            if main is not None:
                signal.pthread_kill(main, number)  # which also ends its sleep, if it sleeps


def _own(handler: Any) -> Any:
    """What the script has given, where there is something of ours in its place."""
    return handler.handler if isinstance(handler, _Counting) else handler


def _may_save(frame: FrameType) -> bool:
    """Whether this is code of the script, or of what trains for it."""
    name = frame.f_globals.get("__name__", "")
    return is_script(frame.f_code.co_filename) or f"{name}.".startswith(_TRAINERS)


def _frame_of_script() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_script(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
