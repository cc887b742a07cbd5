"""Routes signals from the controller of a run to the ranks."""

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
    """Sends the user's signals to the ranks of all nodes.

    After Ctrl-C or SIGTERM the script decides, as under plain python; a second Ctrl-C kills the ranks. Once a
    debugger has been opened on rank 0, the terminal's Ctrl-C is for that rank alone.

    Args:
        ends: record of ends, which notes how the user ended the run.
        outlet: the user's side of the ranks' streams.
    """

    def __init__(self, ends: RankExits, nodes: Sequence[Node], outlet: Outlet) -> None:
        self._ends, self._nodes, self._outlet = ends, nodes, outlet

    def take(self, message: signal.struct_siginfo) -> None:
        """Handle a message of the inbox."""
        if message.si_signo == signal.SIGCHLD:
            for node in self._nodes:
                node.reap(message.si_pid)
        else:
            self.send(message.si_signo, by_key=SignalInbox.from_terminal(message))

    def send(self, number: int, *, by_key: bool = False) -> None:
        """Handle a signal.

        Args:
            by_key: whether the terminal has sent it to the whole foreground group.
        """
        if number == signal.SIGTSTP:
            self._stop_and_continue(by_key=by_key)
        elif number == signal.SIGINT and by_key and self._outlet.is_held:
            self._ends.interrupted_by = number  # the terminal has sent it to rank 0
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
        """Stop ranks and this process by Ctrl-Z, until the shell continues them."""
        for node in self._nodes:
            node.stop(by_key=by_key)
        self._outlet.wipe()
        os.kill(os.getpid(), signal.SIGSTOP)
        for node in self._nodes:
            node.resume()
