"""Signals as messages: blocked, and fetched one by one with their sender."""

from __future__ import annotations

import os
import signal
from types import TracebackType

__all__ = ["SignalInbox"]

SI_KERNEL = 0x80  # si_code of a signal by a terminal's key; `kill` sends SI_USER

WATCHED = (
    signal.SIGCHLD,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
)


class SignalInbox:
    """Receiver of the launcher's signals; while open they wait here without interrupting.

    Signals that were ignored at the start (`nohup`, a background job of a shell script) stay ignored. A
    launcher outside of the main thread gets no signals, and polls for ended ranks instead.
    """

    def __init__(self) -> None:
        self._watched = {number for number in WATCHED if signal.getsignal(number) != signal.SIG_IGN}
        self.previous_mask: set[signal.Signals] = set()

    def __enter__(self) -> SignalInbox:
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)
        self.previous_mask = {signal.Signals(number) for number in previous}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.wait(0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self.previous_mask)

    def wait(self, timeout: float) -> signal.struct_siginfo | None:
        """Return the next signal, or None after `timeout` seconds."""
        return signal.sigtimedwait(self._watched, timeout)

    @staticmethod
    def wake() -> None:
        """End a `wait` of this process at once, for other news. Thread-safe."""
        os.kill(os.getpid(), signal.SIGCHLD)

    @staticmethod
    def from_terminal(message: signal.struct_siginfo) -> bool:
        """Return whether a key at the terminal sent the signal to the foreground group."""
        return message.si_code == SI_KERNEL
