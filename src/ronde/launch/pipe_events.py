"""Events of a node as frames for the launcher."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, final

from ronde.launch.failure import AbortKind, ErrorFile, RankDeath, RankExits
from ronde.launch.frames import FrameKind, Sender
from ronde.launch.node_events import NodeEnd, NodeEvents
from ronde.trace.evidence import Evidence

__all__ = ["PipeEvents"]


@final
class PipeEvents(NodeEvents):
    """Sends events to the launcher; a broken pipe is noticed by its readers.

    Attributes:
        ends: record of the ends of this node's ranks.
        last: the final report of the node, for the agent to send.
    """

    def __init__(self, sender: Sender, first_rank: int) -> None:
        self._sender = sender
        self.ends = RankExits(first_rank)
        self.last: NodeEnd | None = None

    def died(self, death: RankDeath) -> None:
        self.ends.deaths.append(death)
        self._send(FrameKind.DEATH, dataclasses.asdict(death))

    def erred(self, error: ErrorFile) -> None:
        self.ends.errors[error.rank] = error
        self._send(FrameKind.ERROR, dataclasses.asdict(error))

    def froze(self, evidence: Evidence) -> None:
        self._send(FrameKind.FROZEN, dataclasses.asdict(evidence))

    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        self._send(FrameKind.STALL, {"is_over": is_over, "evidence": dataclasses.asdict(evidence)})

    def looked(self, evidence: Evidence) -> None:
        self._send(FrameKind.EVIDENCE, dataclasses.asdict(evidence))

    def aborted(self, kind: AbortKind, said: str) -> None:
        self._send(FrameKind.ABORT, {"kind": kind, "said": said})

    def noticed(self, words: str) -> None:
        self._send(FrameKind.NOTICE, words)

    def ended(self) -> None:
        self._send(FrameKind.ENDED, "")

    def concluded(self, end: NodeEnd) -> None:
        self.last = end

    def _send(self, kind: FrameKind, content: str | dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._sender.send(kind, content)
