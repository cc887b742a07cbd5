"""A change of a server's state: logged, applied, and replayed after a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ronde.server.array_codec import Array
from ronde.server.transport.wire import Message, Opcode

__all__ = ["Answer", "LaterArray", "Record", "StateMachine", "StateOfPart"]

Answer = tuple[dict[str, Any], list[Array]]
#: A function that makes an array; called once, in the order of the state.
LaterArray = Callable[[], Array]
StateOfPart = tuple[dict[str, Any], Sequence[Array | LaterArray]]


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A self-contained change.

    Attributes:
        operation: kind of the change.
        meta: JSON-serializable arguments.
        arrays: array arguments, of dtypes that the wire supports.
        marks: sequence number of the request, for each worker that contributed.
        clocks: number of steps made, for each of these workers.
    """

    operation: Opcode
    meta: dict[str, Any]
    arrays: Sequence[Array]
    marks: dict[int, int]
    clocks: dict[int, int] = dataclasses.field(default_factory=dict)


class StateMachine(Protocol):
    """A part of a server's state, determined by the sequence of records.

    `combine`, `answer` and `read` may raise KeyError, TypeError, ValueError or IndexError for an invalid
    request from the wire; so they change nothing.
    """

    changes: frozenset[Opcode]
    reads: frozenset[Opcode]

    def combine(self, messages: Sequence[Message]) -> Answer:
        """Combine the workers' requests, in rank order, into a record's meta and arrays."""
        ...

    def apply(self, record: Record) -> None:
        """Apply the change of a record."""
        ...

    def answer(self, message: Message) -> Answer:
        """Return the reply to an applied change, also when the request is repeated."""
        ...

    def read(self, message: Message) -> Answer:
        """Return the reply to a read request."""
        ...

    def state(self) -> StateOfPart:
        """Return the whole state, as a snapshot stores it."""
        ...

    def freeze(self) -> None:
        """Prepare for a fork, in which the child process calls `state`.

        Raises:
            RondeError: the state cannot be frozen.
        """
        ...

    def thaw(self) -> None:
        """Release the resources of `freeze`; the child process has ended."""
        ...

    def load(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Load a state that `state` returned."""
        ...
