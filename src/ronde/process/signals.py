"""Runs the script's signal handlers at the same step on all ranks.

A signal reaches the ranks at different places of the script. With a handler that sets a flag, on which the
loop saves and stops, they would stop at different steps. So while the script trains, a signal is only counted
when it arrives. At each step a rank writes its counts on a board in shared memory, reads the counts of all
ranks at the step before, and calls the handler if some rank had received the signal since. A step is the
moment before an optimizer's step; without one, before a backward; in evaluation, before a sharded call of a
model.

A rank reaches an optimizer step with the gradients of all ranks, which have then all reached the step before:
so this read needs no wait. Elsewhere it waits briefly.

If no step follows soon, a signal is handled as in plain Python, wherever the rank is. A signal that a script
sends to itself is handled at once: all ranks send it at the same place.
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

# Signals that are sent from outside, and that the launcher passes on. An alarm is not among them: with it the
# script ends a call that takes too long, and a delayed handler would be too late.
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
# Time that a signal waits for a step: a few times the length of the last one, but short enough that the job
# is not killed first (batch systems allow half a minute).
_STEPS, _LEAST_S, _MOST_S = 3.0, 3.0, 20.0
# Time that a rank waits for others to reach the step before its own.
_PATIENCE_S, _LOOK_EVERY_S = 2.0, 0.0005
# Interval of checks whether execution is in the script.
_LOOK_AGAIN_S = 0.05

Handler = Callable[[int, FrameType | None], Any]


class _CountingHandler(functools.partial[None]):
    """Handler for the interpreter, in place of the script's, its first argument."""

    @property
    def handler(self) -> Handler:
        return self.args[0]


class HandledSignals:
    """Replaces the functions by which a script sets signal handlers.

    Args:
        open_board: function that opens the board shared by all ranks.
        alone: function that tells whether only this rank is in a debugger.
        in_script: function that tells whether the script's own code runs, in step on all ranks: a handler may
            save.
    """

    def __init__(
        self, open_board: Callable[[], SignalBoard], alone: Callable[[], bool], in_script: Callable[[], bool]
    ) -> None:
        self._open_board = open_board
        self._alone = alone
        self._in_script = in_script
        self._board: SignalBoard | None = None
        self._process = os.getpid()
        # Before the first backward no step may come for long, and a signal is handled on arrival.
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
                # A library that had set its own handler restores the script's.
                if handler == self._scripts.get(signalnum) and self._counts(handler):
                    handler = _CountingHandler(self.receive, handler)
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
        """Handle a signal that the script sends itself at once, on all ranks."""
        counting = self._plain(number)
        if isinstance(counting, _CountingHandler) and self._in_step():
            counting.handler(number, sys._getframe())
        else:
            send()

    def uninstall(self) -> None:
        """Handle signals on arrival from now on. The register restores the functions."""
        self._ended = True
        board, self._board = self._board, None
        if board is not None:
            board.close()

    def receive(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        """Receive a signal: count it, or call `handler` at once."""
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
        else:  # inside a model, or where samples are loaded, each rank would write the handler's files
            self._handle_later(number, _LOOK_AGAIN_S)

    def before_step(self) -> None:
        """Handle signals before an optimizer's step, on all ranks."""
        self._training = self._stepped = True
        self._come()

    def before_backward(self) -> None:
        """Handle signals before a backward, on all ranks."""
        self._training = True
        if not self._stepped:
            self._come()

    def before_evaluation(self) -> None:
        """Handle signals before a sharded call of a model without gradients, on all ranks."""
        if self._training:
            self._come()

    def _come(self) -> None:
        """Handle the signals that any rank has received, at a step.

        If one handler raises, the other signals' handlers run at the next step.
        """
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
        """Return, per signal, the maximum count over ranks as of the previous step."""
        begun = 0.0
        while (most := board.most(self._step - 1)) is None:
            begun = begun or monotonic()
            if monotonic() - begun > _PATIENCE_S:
                return list(self._handled)
            sleep(_LOOK_EVERY_S)
        return most

    def _handle(self, number: int, count: int, frame: FrameType | None) -> None:
        """Call the script's handler if `count` exceeds the handled count.

        Several signals that arrive together are one call, as for the system: launchers pass on signals that
        ranks have received already.
        """
        place = _PLACES[number]
        if self._handled[place] < count:
            self._handled[place] = count
            counting = self._plain(number)
            if isinstance(counting, _CountingHandler):
                counting.handler(number, frame or sys._getframe())

    def _in_step(self) -> bool:
        """Return whether this call is in step: on the main thread, not forked."""
        main = threading.current_thread() is threading.main_thread()
        return main and not self._ended and os.getpid() == self._process

    def _counts(self, handler: Any) -> bool:
        """Return whether this handler's calls are counted; the first opens the board."""
        if not callable(handler):
            return False
        if self._board is None:
            try:
                self._board = self._open_board()
            except OSError:  # a full disk, say: signals are handled on arrival
                return False
            self._came = monotonic()
            self._board.write(self._step, self._received)
        return True

    def _handle_later(self, number: int, patience: float) -> None:
        place = _PLACES[number]
        # else it has been handled, because another rank received it earlier
        if self._received[place] > self._handled[place]:
            # Not by `threading`: the interrupted main thread may hold one of its locks.
            _thread.start_new_thread(self._remind, (number, place, patience))

    def _remind(self, number: int, place: int, patience: float) -> None:
        """Call the handler on the main thread if no step has come in time."""
        sleep(patience)
        pending = self._received[place] > self._handled[place] and not self._ended
        if pending and isinstance(self._plain(number), _CountingHandler):
            self._overdue.add(number)
            main = threading.main_thread().ident
            if main is not None:
                signal.pthread_kill(main, number)  # which also interrupts a sleep


def _own(handler: Any) -> Any:
    """Return the script's handler, unwrapped."""
    return handler.handler if isinstance(handler, _CountingHandler) else handler
