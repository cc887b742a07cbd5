"""Requests of a worker to servers, and their refusals."""

from __future__ import annotations

import dataclasses

from ronde.errors import RondeError
from ronde.server.transport.wire import Message

__all__ = ["PendingRequest", "ServerRefused", "changes_lost", "refusal_of"]


class ServerRefused(RondeError):
    """Raised when a server refused a request.

    Attributes:
        why: reason in the server's own words.
    """

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message


@dataclasses.dataclass(eq=False, slots=True)
class PendingRequest:
    """A pending request to one server; made by `Client.send`.

    Attributes:
        answer: the answer; None before it arrives.
    """

    server: int
    message: Message
    answer: Message | None = None
    asked_at: float = 0.0
    patience: float = 1.0
    refusals: int = 0


def refusal_of(server: int, answer: Message) -> str:
    """Return the message for a refused request."""
    return f"server {server}: {answer.meta.get('why', 'refused')} [R430]"


def changes_lost(server: int, missing: int) -> str:
    """Return the message for a server that has forgotten confirmed changes."""
    return (
        f"server {server} was started again without {missing} changes that it had confirmed: its state is "
        "lost; begin again from the script's checkpoint, and use --durability log to survive a killed "
        "server [R402]"
    )
