"""A change of a server's state: what is written to its log, applied, and applied again after a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ronde.server.transport.wire import Message, Operation

__all__ = ["Answer", "Array", "LaterArray", "Part", "Record", "StateOfPart"]

Array = np.ndarray[Any, Any]
Answer = tuple[dict[str, Any], list[Array]]
#: An array that is made when it is called for; once, and in the order of its state.
LaterArray = Callable[[], Array]
StateOfPart = tuple[dict[str, Any], Sequence[Array | LaterArray]]


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One change: by itself, all that it takes to make it.

    Attributes:
        operation: what is done.
        meta: what JSON can hold.
        arrays: of dtypes that the wire knows.
        marks: for each worker whose request is in it, the request's sequence.
        clocks: for each of them, how many steps it has made.
    """

    operation: Operation
    meta: dict[str, Any]
    arrays: Sequence[Array]
    marks: dict[int, int]
    clocks: dict[int, int] = dataclasses.field(default_factory=dict)


class Part(Protocol):
    """A part of a server's state; the same records, in the same order, make the same state.

    `combine`, `answer` and `read` may raise KeyError, TypeError, ValueError or IndexError for a request
    that makes no sense, as it came from the wire; so they change nothing.
    """

    changes: frozenset[Operation]
    reads: frozenset[Operation]

    def combine(self, messages: Sequence[Message]) -> Answer:
        """One change of what workers ask together, in their order: a record's meta and arrays."""
        ...

    def apply(self, record: Record) -> None:
        """Make the change."""
        ...

    def answer(self, message: Message) -> Answer:
        """What a worker is told whose change has been made, now or long ago."""
        ...

    def read(self, message: Message) -> Answer:
        """What a worker asks for that changes nothing."""
        ...

    def state(self) -> StateOfPart:
        """All of it."""
        ...

    def freeze(self) -> None:
        """A process is forked next, and asks for `state`: have what it needs that no fork passes on.

        Raises:
            RondeError: that cannot be.
        """
        ...

    def thaw(self) -> None:
        """That process has ended."""
        ...

    def load(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Become what `state` gave."""
        ...
