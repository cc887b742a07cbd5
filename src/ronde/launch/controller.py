"""The controller of a run: watches ranks on all nodes until they end.

Nodes report events, and get the signals that the user sends. A local node supervises its ranks in this
process's loop; other hosts have agents for that. Ranks of several hosts meet at a store that this process
starts, so that it survives the death of any rank.
"""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import final

from ronde.launch.failure import AbortKind, ErrorFile, RankDeath, RankExits, shell_code
from ronde.launch.job import LaunchJob, Outcome
from ronde.launch.launch_record_writer import LaunchRecordWriter
from ronde.launch.node import Node
from ronde.launch.node_events import NodeEnd, NodeEvents
from ronde.launch.node_query import NodeQuery
from ronde.launch.progress_line import shown_progress
from ronde.launch.run_end import Explain, RunEnd
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.signal_router import SignalRouter
from ronde.launch.stall_detector import notice_after
from ronde.launch.users_terminal import UsersTerminal
from ronde.trace.evidence import Evidence

__all__ = ["Controller"]


@final
class Controller:
    """One run: its nodes, and its end.

    Args:
        nodes: nodes whose ranks have been started.
        store: process of the store where ranks of several hosts meet; None: ranks have a file.
        explain: function that interprets evidence of a stall or a failure.
        is_to_end: event by which the ranks are asked to end, as by SIGTERM.
    """

    def __init__(
        self,
        job: LaunchJob,
        nodes: Sequence[Node],
        inbox: SignalInbox,
        terminal: UsersTerminal,
        store: subprocess.Popen[bytes] | None,
        explain: Explain | None,
        is_to_end: threading.Event | None,
    ) -> None:
        self.ends = RankExits(job.first_rank)
        self.run_end = RunEnd(
            job, self.ends, [node.share for node in nodes], explain, lambda: terminal.in_mid_line
        )
        self._job, self._nodes, self._inbox, self._terminal = job, nodes, inbox, terminal
        self._store, self._is_to_end = store, is_to_end
        self._router = SignalRouter(self.ends, nodes, terminal)
        self._record = LaunchRecordWriter(job, nodes, by_agents=store is not None)
        self._has_failed = False
        self._ended: set[int] = set()
        self._look: NodeQuery | None = None
        self._stalled_at = -math.inf
        for number, node in enumerate(nodes):
            node.begin(self.ends, _EventsOfNode(self, number))

    def run(self) -> Outcome:
        """Return when all ranks of all nodes have ended, or count as lost."""
        with shown_progress(self._terminal.screen, self._terminal.pulse):
            while True:
                self._record.write()
                for node in self._nodes:
                    node.poll()
                self._hear_signals(wait=False)
                for node in self._nodes:
                    node.step()
                if all(node.is_over for node in self._nodes):
                    break
                self._look_at_the_store()
                self._keep_looks()
                self._end_if_failed()
                self._hear_signals()
        self._record.write_nodes()
        return self.run_end.outcome()

    def _hear_signals(self, *, wait: bool = True) -> None:
        if self._is_to_end is not None and self._is_to_end.is_set():
            self._is_to_end = None
            self._router.send(signal.SIGTERM)
        message = self._inbox.wait(min(node.tick() for node in self._nodes) if wait else 0)
        while message is not None:
            self._router.take(message)
            message = self._inbox.wait(0)

    # Events of nodes.

    def take_stall(self, node: int, evidence: Evidence, *, is_over: bool) -> None:
        """Ask all nodes about their ranks when ranks of one wait too long."""
        if not is_over and time.monotonic() - self._stalled_at < notice_after(self._job.run.timeout):
            return  # another node has reported it
        self._stalled_at = time.monotonic()
        self._ask("stall", lambda parts: self.run_end.stalled(parts, is_over=is_over), {node: evidence})

    def take_look(self, node: int, evidence: Evidence) -> None:
        """Take a node's answer to the question about its ranks."""
        if self._look is not None:
            self._look.take(node, evidence)

    def take_end(self, node: int) -> None:
        """Record that a node's ranks have ended well; after all nodes, servers end."""
        self._ended.add(node)
        if all(number in self._ended or each.is_over for number, each in enumerate(self._nodes)):
            for each in self._nodes:
                each.release()

    # Questions to nodes.

    def _ask(
        self,
        reason: str,
        told: Callable[[Mapping[int, Evidence]], object],
        known: Mapping[int, Evidence],
    ) -> None:
        """Ask all nodes for evidence, unless a query is under way."""
        if self._look is None:
            self._look = NodeQuery(told, known)
            for number, node in enumerate(self._nodes):
                if not node.is_over and number not in known:
                    node.look(reason)

    def _keep_looks(self) -> None:
        """Finish a query that is complete, and begin one if `ronde doctor` asks."""
        look = self._look
        alive = {number for number, node in enumerate(self._nodes) if not node.is_over}
        if look is not None and look.is_complete(alive):
            self._look = None
            self.note_silences()
            look.conclude()
        question = self._job.run_directory.question
        if self._look is None and question.exists():
            with contextlib.suppress(OSError):
                question.unlink()
            self._ask("asked", self.run_end.asked, {})

    def note_silences(self) -> None:
        """Record for how many seconds each silent node has sent nothing."""
        self.run_end.hear_nothing_of({number: node.silence for number, node in enumerate(self._nodes)})

    def _look_at_the_store(self) -> None:
        if self._store is not None and self._store.poll() is not None and not self.ends.has_failed:
            self.run_end.abort(
                "store",
                f"the rendezvous store has ended (exit code {shell_code(self._store.returncode)}); start the "
                "run again [R123]",
            )

    def _end_if_failed(self) -> None:
        """End all ranks after a failure, once."""
        if self.ends.has_failed and not self._has_failed:
            self._has_failed = True
            for node in self._nodes:
                node.end()


@final
class _EventsOfNode(NodeEvents):
    """Forwards events of one node to the controller."""

    def __init__(self, controller: Controller, node: int) -> None:
        self._controller, self._node = controller, node
        self._ends, self._run_end = controller.ends, controller.run_end

    def died(self, death: RankDeath) -> None:
        self._ends.deaths.append(death)

    def erred(self, error: ErrorFile) -> None:
        self._ends.errors[error.rank] = error

    def froze(self, evidence: Evidence) -> None:
        self._run_end.froze(self._node, evidence)

    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        self._controller.take_stall(self._node, evidence, is_over=is_over)

    def looked(self, evidence: Evidence) -> None:
        self._controller.take_look(self._node, evidence)

    def aborted(self, kind: AbortKind, said: str) -> None:
        self._controller.note_silences()
        self._run_end.abort(kind, said, self._node)

    def noticed(self, words: str) -> None:
        self._run_end.notice(words)

    def ended(self) -> None:
        self._controller.take_end(self._node)

    def concluded(self, end: NodeEnd) -> None:
        self._run_end.ended(self._node, *end)
