"""Signals that the script handles: its handler runs at the same step on all ranks.

A signal reaches the ranks at different places of the script. A handler that sets a flag, at which the loop
saves and leaves, would make them leave one step apart. So while the script trains, a signal is only counted
when it comes. At each step a rank writes its counts on a board in shared memory, reads those that all ranks
had at the step before, and calls the handler if some rank had received the signal since. A step is where an
optimizer is about to step; where none has, a backward; in evaluation, a call of a model in shards.

A rank comes to an optimizer step when it has the gradients of all ranks, which have then all come to the step
before: so nobody waits for what is read. Elsewhere it waits a little.

What has been received while no step comes for long is handled as in plain python, wherever the rank is. What
a script sends to itself is handled at once: all ranks send it at the same place.
"""

from __future__ import annotations

import _thread
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep  # bound here: the module's own are replaced for scripts
from types import FrameType
from typing import Any

from ronde.patching.caller import called_by_script
from ronde.patching.patches import Patches
from ronde.process.signal_board import SignalBoard

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
# How long a signal waits for a step: some of the latest length, and never so long that the job is killed
# first (batch systems allow half a minute).
_STEPS, _LEAST_S, _MOST_S = 3.0, 3.0, 20.0
# How long a rank waits for others to come to the step before its own.
_PATIENCE_S, _LOOK_EVERY_S = 2.0, 0.0005
# How long until it is asked again whether execution is in the script.
_LOOK_AGAIN_S = 0.05

Handler = Callable[[int, FrameType | None], Any]


class _Counting(functools.partial[None]):
    """What the interpreter calls in the place of the script's handler, which is its first argument."""

    @property
    def handler(self) -> Handler:
        return self.args[0]


class HandledSignals:
    """Replaces the functions by which a script says how it handles signals.

    Args:
        open_board: shared by all ranks.
        alone: whether this rank is in a debugger, and the others are not.
        in_script: whether execution is where the script's code does what all ranks do: a handler may save.
    """

    def __init__(
        self, open_board: Callable[[], SignalBoard], alone: Callable[[], bool], in_script: Callable[[], bool]
    ) -> None:
        self._open_board = open_board
        self._alone = alone
        self._in_script = in_script
        self._board: SignalBoard | None = None
        self._process = os.getpid()
        # Before the first backward no step may come for long, and a signal is handled as it comes.
        self._training = self._stepped = self._ended = False
        self._step = 0
        self._came = self._took = 0.0
        self._received = [0] * len(COUNTED)
        self._handled = [0] * len(COUNTED)
        self._scripts: dict[int, Any] = {}
        self._overdue: set[int] = set()
        self._plain: Callable[[int], Any] = signal.getsignal

    def install(self, patches: Patches) -> None:
        plain: Callable[[int, Any], Any] = signal.signal

        @functools.wraps(plain)
        def set_handler(signalnum: int, handler: Any) -> Any:
            if signalnum in _PLACES and self._in_step():
                if called_by_script(or_by=_TRAINERS):
                    self._scripts[signalnum] = handler
                # A library that has had one of its own for a while puts the script's back.
                if handler == self._scripts.get(signalnum) and self._counts(handler):
                    handler = _Counting(self.receive, handler)
            return _own(plain(signalnum, handler))

        @functools.wraps(self._plain)
        def get_handler(signalnum: int) -> Any:
            return _own(self._plain(signalnum))

        # Python's own handler raises KeyboardInterrupt, at which scripts save and leave, or stop training.
        self._scripts[signal.SIGINT] = signal.default_int_handler
        plain_raise, plain_kill = signal.raise_signal, os.kill

        @functools.wraps(plain_raise)
        def raise_signal(signalnum: int, /) -> None:
            self._send(signalnum, lambda: plain_raise(signalnum))

        @functools.wraps(plain_kill)
        def kill(pid: int, sig: int, /) -> None:
            if pid == self._process:
                self._send(sig, lambda: plain_kill(pid, sig))
            else:
                plain_kill(pid, sig)

        patches.set(signal, "signal", set_handler)
        patches.set(signal, "getsignal", get_handler)
        patches.set(signal, "raise_signal", raise_signal)
        patches.set(os, "kill", kill)

    def _send(self, number: int, send: Callable[[], None]) -> None:
        """The script sends this to itself, as on all ranks at the same place: it is handled there."""
        counting = self._plain(number)
        if isinstance(counting, _Counting) and self._in_step():
            counting.handler(number, sys._getframe())
        else:
            send()

    def uninstall(self) -> None:
        """From here on signals are handled as they come; the functions are the register's to put back."""
        self._ended = True
        board, self._board = self._board, None
        if board is not None:
            board.close()

    def receive(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        """A signal has come that `handler` is for."""
        if not self._in_step():
            handler(number, frame)
            return
        place = _PLACES[number]
        if number in self._overdue:
            self._overdue.discard(number)
        else:
            self._received[place] += 1
            if self._training and not self._alone():
                self._handle_later(number, min(max(_LEAST_S, _STEPS * self._took), _MOST_S))
                return
        if self._in_script() or self._alone():
            self._handle(number, self._received[place], frame)
        else:  # inside a model, or where samples are loaded: what the handler writes would be every rank's
            self._handle_later(number, _LOOK_AGAIN_S)

    def before_step(self) -> None:
        """An optimizer is about to step, on all ranks."""
        self._training = self._stepped = True
        self._come()

    def before_backward(self) -> None:
        """A backward is about to begin, on all ranks."""
        self._training = True
        if not self._stepped:
            self._come()

    def before_evaluation(self) -> None:
        """A model is about to run in shards without gradients, on all ranks."""
        if self._training:
            self._come()

    def _come(self) -> None:
        """To a step: handle what some rank has received. Where a handler raises, the others' turn is next."""
        board = self._board
        if board is None or self._alone():
            return
        self._step += 1
        now = monotonic()
        self._took, self._came = now - self._came, now
        board.write(self._step, self._received)
        for number, count in zip(COUNTED, self._received_before(board), strict=True):
            self._handle(number, count, None)

    def _received_before(self, board: SignalBoard) -> Sequence[int]:
        """Of each signal the most that any rank had received at the step before."""
        begun = 0.0
        while (most := board.most(self._step - 1)) is None:
            begun = begun or monotonic()
            if monotonic() - begun > _PATIENCE_S:
                return list(self._handled)
            sleep(_LOOK_EVERY_S)
        return most

    def _handle(self, number: int, count: int, frame: FrameType | None) -> None:
        """Call the script's handler if that is more often than was seen to: what came together is one call.

        So it is for the system, and launchers pass on what ranks have got already.
        """
        place = _PLACES[number]
        if self._handled[place] < count:
            self._handled[place] = count
            counting = self._plain(number)
            if isinstance(counting, _Counting):
                counting.handler(number, frame or sys._getframe())

    def _in_step(self) -> bool:
        """In another thread nobody sets handlers, and a fork (a worker that loads samples) is not in step."""
        main = threading.current_thread() is threading.main_thread()
        return main and not self._ended and os.getpid() == self._process

    def _counts(self, handler: Any) -> bool:
        """Whether calls of this handler are to be counted; the first such opens the board."""
        if not callable(handler):
            return False
        if self._board is None:
            try:
                self._board = self._open_board()
            except OSError:  # a full disk, say: signals are handled as they come
                return False
            self._came = monotonic()
            self._board.write(self._step, self._received)
        return True

    def _handle_later(self, number: int, patience: float) -> None:
        place = _PLACES[number]
        if self._received[place] > self._handled[place]:  # else it has been, as another rank had it first
            # Not by `threading`, one of whose locks the main thread may hold that was interrupted.
            _thread.start_new_thread(self._remind, (number, place, patience))

    def _remind(self, number: int, place: int, patience: float) -> None:
        """In a thread: if no step has come in time, have the handler called where the main thread is."""
        sleep(patience)
        pending = self._received[place] > self._handled[place] and not self._ended
        if pending and isinstance(self._plain(number), _Counting):
            self._overdue.add(number)
            main = threading.main_thread().ident
            if main is not None:
                signal.pthread_kill(main, number)  # which also ends its sleep, if it sleeps


def _own(handler: Any) -> Any:
    """What the script has given, where there is something of ours in its place."""
    return handler.handler if isinstance(handler, _Counting) else handler
