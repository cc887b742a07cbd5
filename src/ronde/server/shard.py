"""All that one server knows: parts of dense parameters and of tables, and whose changes are in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ronde.errors import RondeError
from ronde.server.record import Answer, Array, LaterArray, Part, Record
from ronde.server.transport.wire import Message, Operation, WireError

__all__ = ["Shard"]


class Shard:
    """A state machine: its state is what its records have made of it.

    Args:
        parts: by name, in the order in which their state is written.

    Attributes:
        marks: for each worker, the sequence of its last change.
        clocks: steps that each worker has made.
        left: workers that make no more.
        run: of whose workers it is; "" before they have come.
    """

    def __init__(self, parts: dict[str, Part]) -> None:
        self._parts = parts
        self._changes = {each: part for part in parts.values() for each in part.changes}
        self._reads = {each: part for part in parts.values() for each in part.reads}
        self.marks: dict[int, int] = {}
        self.clocks: dict[int, int] = {}
        self.left: set[int] = set()
        self.run = ""

    def is_change(self, operation: Operation) -> bool:
        return operation in self._changes

    def prepare(self, messages: Sequence[Message]) -> Record:
        """The change that these messages ask for together.

        Raises:
            WireError: they make no sense; nothing has changed.
        """
        operation = messages[0].operation
        try:
            meta, arrays = self._changes[operation].combine(messages)
        except Exception as error:  # it came from the wire: nothing in it ends a server
            raise _nonsense(operation, error) from None
        marks = {each.worker: each.sequence for each in messages}
        return Record(operation, meta, arrays, marks, {each.worker: each.clock for each in messages})

    def apply(self, record: Record) -> None:
        """Make a change, and remember whose it is, also where it fails: it will fail again."""
        if record.operation is Operation.LEAVE:
            self.left |= record.marks.keys()
            return
        if record.operation is Operation.HELLO:
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
        """What a worker is told about a change that has been made."""
        return self._asked(self._changes[message.operation].answer, message)

    def read(self, message: Message) -> Answer:
        """What a worker asks for.

        Raises:
            WireError: that is nothing which can be read.
        """
        part = self._reads.get(message.operation)
        if part is None:
            raise WireError("request", f"{message.operation.name.lower()} is nothing that this server knows")
        return self._asked(part.read, message)

    def freeze(self) -> None:
        """A process is forked next, which asks for `state`.

        Raises:
            RondeError: what it needs cannot be had.
        """
        for part in self._parts.values():
            part.freeze()

    def thaw(self) -> None:
        """That process has ended."""
        for part in self._parts.values():
            part.thaw()

    def state(self) -> tuple[dict[str, Any], list[Array | LaterArray]]:
        """All of it, marks included."""
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
        """Become what `state` gave."""
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


def _nonsense(operation: Operation, error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    said = str(error) if isinstance(error, RondeError) else f"{type(error).__name__} {error}"
    return WireError("request", f"{operation.name.lower()}: {said}"[:300])
