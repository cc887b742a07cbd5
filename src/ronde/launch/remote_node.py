"""A node on another host: frames of its agent become events."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from ronde.launch.agent import BEAT_S
from ronde.launch.agent_link import AgentLink
from ronde.launch.clock import launched_node
from ronde.launch.failure import ErrorFile, RankDeath, RankExits, shell_code
from ronde.launch.file_receiver import FileReceiver
from ronde.launch.frames import FrameKind, unpack
from ronde.launch.mirror import FileChunk, is_mirrored
from ronde.launch.node import Node, NodeOfRun
from ronde.launch.node_events import NodeEnd, NodeEvents
from ronde.launch.node_spec import NodeSpec
from ronde.trace.events import append_events, events_path
from ronde.trace.evidence import Evidence
from ronde.trace.launch_record import LaunchedNode
from ronde.trace.lockstep_board import BoardPosition
from ronde.trace.progress import Pulse
from ronde.trace.run_directory import RunDirectory

__all__ = ["RemoteNode"]

# Seconds without a message of an agent after which its host counts as lost.
_SILENCE_S = 20.0
# Longest time that agents take to end their ranks after a failure, by the supervisor's timetable.
_ENDED_S = 14.0
_CLOSED_S = 3.0


@final
class RemoteNode(Node):
    """A node behind the pipe of an agent.

    Args:
        spec: the node's part of the run, which is sent to the agent.
        directory: run directory of the launcher, which gets the node's files.
        arriving: receiver of the node's large files.
        pulse: progress of rank 0, where it is on this node.
        notices: messages for the user about this node.
    """

    def __init__(
        self,
        link: AgentLink,
        spec: NodeSpec,
        directory: RunDirectory,
        arriving: FileReceiver,
        pulse: Pulse | None,
        notices: Sequence[str],
    ) -> None:
        self.share = NodeOfRun(
            name=link.name, first_rank=spec.first_rank, ranks=spec.ranks, address=spec.address
        )
        self._run_id, self._pids = spec.run_id, {}
        self._link, self._directory, self._arriving = link, directory, arriving
        self._pulse, self._notices = pulse, notices
        self._is_killed = False
        self._ending_since: float | None = None
        self._heard, self._next_beat = time.monotonic(), 0.0
        link.send(FrameKind.START, spec.to_fields())

    def begin(self, ends: RankExits, events: NodeEvents) -> None:
        self._events = events
        for words in self._notices:
            events.noticed(words)

    @property
    def record(self) -> LaunchedNode | None:
        if not self._pids:
            return None
        return launched_node(self.share.name, self._run_id, self._pids, self._link.clock)

    @property
    def silence(self) -> float:
        return time.monotonic() - self._heard

    def tick(self) -> float:
        return 0.2 if self._link.news.empty() else 0.0

    def poll(self) -> None:
        """Leave all to `step`: the agent there sees signals before ends of ranks."""

    def step(self) -> None:
        while not self._link.news.empty():
            kind, content = self._link.news.get()
            if kind is not None:
                self._heard = time.monotonic()
            if not self.is_over:
                self._take(kind, content)
        if not self.is_over:
            self._keep_time()

    def look(self, reason: str) -> None:
        self._send(FrameKind.LOOK, reason)

    def end(self) -> None:
        self._ending_since = time.monotonic()
        self._send(FrameKind.END)

    def release(self) -> None:
        self._send(FrameKind.RELEASE)

    def signal(self, number: int, *, by_key: bool) -> None:
        if number != signal.SIGWINCH:
            self._send(FrameKind.SIGNAL, str(int(number)))

    def kill(self) -> None:
        """Kill the ranks as Ctrl-C does; a second time, disconnect the agent."""
        self._send(FrameKind.SIGNAL, str(int(signal.SIGINT)))
        if self._is_killed:
            self._link.close()
        self._is_killed = True

    def stop(self, *, by_key: bool) -> None:
        self._send(FrameKind.SIGNAL, str(int(signal.SIGSTOP)))

    def resume(self) -> None:
        self._heard = time.monotonic()
        self._send(FrameKind.SIGNAL, str(int(signal.SIGCONT)))

    def reap(self, pid: int) -> None:
        """No-op: the agent reaps its ranks."""

    def _send(self, kind: FrameKind, content: str = "") -> None:
        if not self.is_over:
            self._link.send(kind, content)

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self._link.ask_clock()
        if now - self._heard > _SILENCE_S:
            self._lose([f"no message from it for {_SILENCE_S:g} s [R121]"], 0)
        late = 0.0 if self._ending_since is None else now - max(self._ending_since, self._arriving.latest)
        if late > _ENDED_S:
            self._link.close()
        if late > _ENDED_S + _CLOSED_S:
            self._lose([f"no answer for {_ENDED_S + _CLOSED_S:g} s [R121]"], 0)

    def _take(self, kind: FrameKind | None, content: bytes) -> None:
        events = self._events
        if kind is FrameKind.BEAT:
            fields = unpack(content)
            self.waiting = fields["waiting"]
            if self._pulse is not None:
                self._pulse.beat(fields["steps"], fields["samples"])
        elif kind is FrameKind.PIECE:
            self._take_piece(FileChunk.from_bytes(content))
        elif kind is FrameKind.STARTED:
            self._pids = {int(rank): pid for rank, pid in unpack(content)["pids"].items()}
        elif kind is FrameKind.DEATH:
            events.died(RankDeath(**self._by_our_clock(unpack(content))))
        elif kind is FrameKind.ERROR:
            self._take_error(ErrorFile.from_fields(self._by_our_clock(unpack(content))))
        elif kind is FrameKind.STALL:
            fields = unpack(content)
            events.stalled(self._evidence(fields["evidence"]), is_over=bool(fields["is_over"]))
        elif kind is FrameKind.FROZEN:
            events.froze(self._evidence(unpack(content)))
        elif kind is FrameKind.EVIDENCE:
            events.looked(self._evidence(unpack(content)))
        elif kind is FrameKind.ABORT:
            fields = unpack(content)
            events.aborted(fields["kind"], fields["said"])
        elif kind is FrameKind.NOTICE:
            events.noticed(content.decode())
        elif kind is FrameKind.ENDED:
            events.ended()
        elif kind is FrameKind.LAST:
            self._take_last(unpack(content))
        elif kind is None:
            self._lose(self._link.said, self._link.code)

    def _by_our_clock(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {**fields, "time": fields["time"] - self._link.clock.first.wall}

    def _evidence(self, fields: Mapping[str, Any]) -> Evidence:
        return Evidence.from_fields(self._by_our_clock(fields))

    def _take_piece(self, piece: FileChunk) -> None:
        """Write part of a node's file into the launcher's run directory."""
        directory: Path = self._directory.path
        if piece.name == events_path(directory).name:
            append_events(directory, piece.data, later=-self._link.clock.first.wall)
        elif is_mirrored(piece.name):
            with contextlib.suppress(OSError):
                piece.write_into(directory)

    def _take_error(self, error: ErrorFile) -> None:
        with contextlib.suppress(OSError):
            path = self._directory.error(error.rank)
            path.write_text(json.dumps(dataclasses.asdict(error)), encoding="utf-8")
        self._events.erred(error)

    def _take_last(self, fields: Mapping[str, Any]) -> None:
        """Handle the end of the node's part, or its refusal."""
        self.is_over = True
        if "refused" in fields:
            self._events.aborted("refused", fields["refused"])
            return
        standings = [BoardPosition.from_fields(each) for each in fields["standings"]]
        self._events.concluded(NodeEnd(self._evidence(fields["evidence"]), standings, fields["left"]))

    def _lose(self, said: Sequence[str], code: int) -> None:
        """Handle an agent that is gone without a final report."""
        self.is_over = True
        why = next((line.strip() for line in reversed(said) if line.strip()), f"exit code {shell_code(code)}")
        share = self.share
        ranks = ", ".join(str(share.first_rank + local) for local in range(share.ranks))
        self._events.aborted(
            "host",
            f"the connection to {share.name} is lost ({why}), and with it "
            f"rank{'s' if share.ranks > 1 else ''} {ranks}; check whether that host is up; processes there "
            "end by themselves [R120]",
        )
