"""A server's whole state: its parts, and the last change of each worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ronde.errors import RondeError
from ronde.server.array_codec import Array
from ronde.server.record import Answer, LaterArray, Record, StateMachine
from ronde.server.transport.wire import Message, Opcode, WireError

__all__ = ["ServerShard"]


class ServerShard:
    """A deterministic state machine, driven by records.

    Args:
        parts: parts by name, in the order in which their state is written.

    Attributes:
        marks: sequence number of each worker's last change.
        clocks: number of steps of each worker.
        left: workers that have left.
        run: id of the run that owns the state; "" before the first HELLO.
    """

    def __init__(self, parts: dict[str, StateMachine]) -> None:
        self._parts = parts
        self._changes = {each: part for part in parts.values() for each in part.changes}
        self._reads = {each: part for part in parts.values() for each in part.reads}
        self.marks: dict[int, int] = {}
        self.clocks: dict[int, int] = {}
        self.left: set[int] = set()
        self.run = ""

    def is_change(self, operation: Opcode) -> bool:
        return operation in self._changes

    def prepare(self, messages: Sequence[Message]) -> Record:
        """Combine the messages into one change.

        Raises:
            WireError: the request is invalid; nothing has changed.
        """
        operation = messages[0].operation
        try:
            meta, arrays = self._changes[operation].combine(messages)
        except Exception as error:  # invalid input from the wire must not end the server
            raise _nonsense(operation, error) from None
        marks = {each.worker: each.sequence for each in messages}
        return Record(operation, meta, arrays, marks, {each.worker: each.clock for each in messages})

    def apply(self, record: Record) -> None:
        """Apply a change and record its sequence numbers, also if it fails.

        A change that fails would fail again.
        """
        if record.operation is Opcode.LEAVE:
            self.left |= record.marks.keys()
            return
        if record.operation is Opcode.HELLO:
            self.run = record.meta["run"]
            return
        try:
            self._changes[record.operation].apply(record)
        finally:
            self.marks.update(record.marks)
            for worker, clock in record.clocks.items():
                self.clocks[worker] = max(clock, self.clocks.get(worker, 0))
            self.left -= record.marks.keys()

    def answer(self, message: Message) -> Answer:
        """Return the reply to a change that was applied."""
        return self._asked(self._changes[message.operation].answer, message)

    def read(self, message: Message) -> Answer:
        """Return the reply to a read request.

        Raises:
            WireError: the operation is unknown or the request invalid.
        """
        part = self._reads.get(message.operation)
        if part is None:
            raise WireError(
                "request", f"{message.operation.name.lower()} is not an operation of this server [R430]"
            )
        return self._asked(part.read, message)

    def freeze(self) -> None:
        """Prepare for a fork, in which the child process calls `state`.

        Raises:
            RondeError: a part cannot be frozen.
        """
        for part in self._parts.values():
            part.freeze()

    def thaw(self) -> None:
        """Release the resources of `freeze`; the child process has ended."""
        for part in self._parts.values():
            part.thaw()

    def state(self) -> tuple[dict[str, Any], list[Array | LaterArray]]:
        """Return the whole state, with sequence numbers and clocks."""
        told: dict[str, Any] = {
            "marks": [[worker, mark] for worker, mark in self.marks.items()],
            "clocks": [[worker, clock] for worker, clock in self.clocks.items()],
            "left": sorted(self.left),
            "run": self.run,
        }
        arrays: list[Array | LaterArray] = []
        for name, part in self._parts.items():
            meta, own = part.state()
            told[name] = [meta, len(own)]
            arrays += own
        return told, arrays

    def load(self, told: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Load a state that `state` returned."""
        self.marks = dict(told["marks"])
        self.clocks = dict(told["clocks"])
        self.left = set(told["left"])
        self.run = told["run"]
        begin = 0
        for name, part in self._parts.items():
            meta, count = told[name]
            part.load(meta, arrays[begin : begin + count])
            begin += count

    def _asked(self, ask: Any, message: Message) -> Answer:
        try:
            return ask(message)
        except Exception as error:
            raise _nonsense(message.operation, error) from None


def _nonsense(operation: Opcode, error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    said = str(error) if isinstance(error, RondeError) else f"{type(error).__name__} {error}"
    return WireError("request", f"{operation.name.lower()}: {said}"[:300])
