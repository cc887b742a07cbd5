"""Signals to the controller of a run, and the ranks that are given them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import final

from ronde.launch.failure import ENDING, RankExits
from ronde.launch.node import Node
from ronde.launch.outlet import Outlet
from ronde.launch.signal_inbox import SignalInbox

__all__ = ["SignalRouter"]


@final
class SignalRouter:
    """Gives the ranks of all nodes the signals of the user.

    After Ctrl-C or SIGTERM the script decides, as under plain python; a second Ctrl-C kills the ranks. Once a
    debugger has been opened on rank 0, the terminal's Ctrl-C is for that rank alone.

    Args:
        ends: account of ends, which learns how the user has ended the run.
        outlet: the side of the user.
    """

    def __init__(self, ends: RankExits, nodes: Sequence[Node], outlet: Outlet) -> None:
        self._ends, self._nodes, self._outlet = ends, nodes, outlet

    def take(self, message: signal.struct_siginfo) -> None:
        """Act on a message of the inbox."""
        if message.si_signo == signal.SIGCHLD:
            for node in self._nodes:
                node.reap(message.si_pid)
        else:
            self.send(message.si_signo, by_key=SignalInbox.from_terminal(message))

    def send(self, number: int, *, by_key: bool = False) -> None:
        """Act on a signal.

        Args:
            by_key: whether the terminal has given it to the whole foreground group.
        """
        if number == signal.SIGTSTP:
            self._stop_and_continue(by_key=by_key)
        elif number == signal.SIGINT and by_key and self._outlet.is_held:
            self._ends.interrupted_by = number  # rank 0 has it from the terminal
        elif number == signal.SIGINT and self._ends.interrupted_by == signal.SIGINT:
            self._ends.killed_by_user = True
            for node in self._nodes:
                node.kill()
        else:
            if number in ENDING and not self._ends.has_failed:
                self._ends.interrupted_by = number
            for node in self._nodes:
                node.signal(number, by_key=by_key)

    def _stop_and_continue(self, *, by_key: bool) -> None:
        """Stop all by Ctrl-Z, ranks and this process, until the shell continues it."""
        for node in self._nodes:
            node.stop(by_key=by_key)
        self._outlet.wipe()
        os.kill(os.getpid(), signal.SIGSTOP)
        for node in self._nodes:
            node.resume()
