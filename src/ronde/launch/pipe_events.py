"""What happens on a node, told to a launcher by frames."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any

from ronde.launch.failure import ErrorFile, RankDeath
from ronde.launch.frames import Kind, Sender
from ronde.launch.node_events import NodeEvents
from ronde.trace.evidence import Evidence

__all__ = ["PipeEvents"]


class PipeEvents(NodeEvents):
    """Sends what happens; a launcher that is gone is noticed by whoever listens to it.

    Attributes:
        released: whether the ranks of all hosts have ended; set from any thread.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.released = threading.Event()

    def died(self, death: RankDeath) -> None:
        self._send(Kind.DEATH, dataclasses.asdict(death))

    def erred(self, error: ErrorFile) -> None:
        self._send(Kind.ERROR, dataclasses.asdict(error))

    def froze(self, evidence: Evidence) -> None:
        self._send(Kind.EVIDENCE, evidence.to_json())

    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        self._send(Kind.STALL, {"is_over": is_over, "evidence": dataclasses.asdict(evidence)})

    def lost_server(self, said: str) -> None:
        self._send(Kind.LOST, said)

    def ended(self, *, has_servers: bool) -> None:
        """Servers serve the ranks of all hosts, so they end after the last of these."""
        self._send(Kind.ENDED, "")
        if has_servers:
            self.released.wait()

    def noticed(self, words: str) -> None:
        self._send(Kind.NOTICE, words)

    def _send(self, kind: Kind, content: str | dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._sender.send(kind, content)
