"""One server's protocol: changes are logged, applied and then answered, each exactly once.

`sync`: a change is made of one request of every worker, all with the same sequence, in the order of ranks; so
what comes out does not depend on who came first. `async`: each request is a change by itself, at once.
`bounded`: the same, and a worker is not answered while the slowest one is more than `staleness` steps behind
it (Ho et al. 2013). A request whose change has been made already, known by worker and sequence, is answered
again and changes nothing; one that is out of turn is refused, and comes again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, Protocol

from ronde.errors import RondeError
from ronde.server.greeting import misfit
from ronde.server.presence import Presence
from ronde.server.record import Record
from ronde.server.shard import Shard
from ronde.server.transport.service import Reply
from ronde.server.transport.wire import Message, Operation, WireError

__all__ = ["Counts", "Journal", "ParameterServer", "Rule"]

# Answers that wait for their time; each holds a message.
_MOST_DEFERRED = 65_536
_LONGEST_RUN = 256

Rule = Literal["sync", "async", "bounded"]


class Journal(Protocol):
    """Where changes are written before they are made."""

    def append(self, record: Record) -> None:
        """Write one; on return it survives this process.

        Raises:
            RondeError: it cannot be written, and must not be made.
        """
        ...

    def tick(self) -> None:
        """Called many times a second, while no change is half made."""
        ...


@dataclasses.dataclass(slots=True)
class Counts:
    """What a server has done since it was started.

    Attributes:
        applied: changes made.
        repeated: requests that were answered again, and changed nothing.
        reads: questions answered.
    """

    applied: int = 0
    repeated: int = 0
    reads: int = 0


class ParameterServer:
    """Answers the workers of one run.

    Args:
        shard: what it knows.
        journal: where changes are written first; None for nowhere.
        workers: how many there are.
        rule: when a change is made.
        staleness: steps by which the slowest worker may be behind, of `bounded`.
        about: what greets a worker: which server of how many, how often it was started.
        on_stop: called when a worker, or whoever started this, says that it is over.
    """

    def __init__(
        self,
        shard: Shard,
        journal: Journal | None,
        *,
        workers: int,
        rule: Rule = "sync",
        staleness: int = 0,
        about: dict[str, Any] | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.shard = shard
        self.counts = Counts()
        self._journal = journal
        self._workers = workers
        self._rule = rule
        self._staleness = staleness
        self._about = about or {}
        self._on_stop = on_stop
        # Requests that wait for those of other workers, by sequence and worker.
        self._rounds: dict[int, dict[int, tuple[Message, Reply]]] = {}
        # The last request of each worker that waits in a round, or whose change has been made.
        self._accepted: dict[int, int] = {}
        # What waits until the state is new enough, by worker and request.
        self._deferred: dict[tuple[int, int], tuple[Message, Reply]] = {}
        self._presence = Presence(workers, shard.marks)
        # How often each worker was started before: what an earlier life of it had sent may still arrive.
        self._incarnations: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """How many requests have not been answered yet."""
        return len(self._deferred) + sum(map(len, self._rounds.values()))

    def handle(self, message: Message, reply: Reply) -> None:
        """Answer a message, at once or when the time has come; `WireError` for what cannot be done."""
        if message.incarnation < self._incarnations.get(message.worker, 0):
            raise WireError(
                "incarnation", f"worker {message.worker} has been started again since it sent this"
            )
        if message.operation in (Operation.HELLO, Operation.STATUS, Operation.LEAVE, Operation.STOP):
            if message.operation is Operation.STATUS and message.worker < self._workers:
                self._presence.heard(message.worker)
            self._administer(message, reply)
        elif not 0 <= message.worker < self._workers:
            raise WireError("worker", f"there is no worker {message.worker} among {self._workers}")
        else:
            self._presence.heard(message.worker)
            self._serve(message, reply)

    def _serve(self, message: Message, reply: Reply) -> None:
        if self.shard.is_change(message.operation):
            self._change(message, reply)
        else:
            self._answer_when_due(message, reply)

    def tick(self) -> None:
        """Do not wait for workers who have gone, and let the journal make a snapshot."""
        gone = self._presence.look()
        if gone:
            if self._rule == "bounded":  # who is started again must not wait for them either
                marks = {worker: self.shard.marks.get(worker, 0) for worker in gone}
                with contextlib.suppress(WireError):  # a full disk; then they are waited for a minute
                    self._write_and_apply(Record(Operation.LEAVE, {}, [], marks))
            self._wake()
        if self._journal is not None:
            self._journal.tick()

    def _administer(self, message: Message, reply: Reply) -> None:
        if message.operation is Operation.STOP:
            self._on_stop()
        elif message.operation is not Operation.STATUS and not 0 <= message.worker < self._workers:
            raise WireError("worker", f"there is no worker {message.worker} among {self._workers}")
        elif message.operation is Operation.LEAVE:
            self._presence.left(message.worker)
            self._write_and_apply(Record(message.operation, {}, [], {message.worker: message.sequence}))
            self._wake()
        elif message.operation is Operation.HELLO:
            self._admit(message)
            process = message.meta.get("process")
            self._presence.met(message.worker, process if type(process) is int else None)
            self.shard.left.discard(message.worker)
            self._incarnations[message.worker] = message.incarnation
        mark = self.shard.marks.get(message.worker, 0)
        told = {**self._about, "sequence": mark, "counts": dataclasses.asdict(self.counts)}
        reply(
            message.answer(
                {**told, "clocks": [[worker, clock] for worker, clock in self.shard.clocks.items()]}
            )
        )

    def _admit(self, message: Message) -> None:
        """See that a worker is of the run that this server is for, and remember which that is.

        Raises:
            WireError: it is not.
        """
        about = {**self._about, "workers": self._workers}
        why = misfit(about, self.shard.run, message.meta)
        if why:
            raise WireError("run", why)
        run = message.meta.get("run")
        if isinstance(run, str) and run and not self.shard.run:
            self._write_and_apply(Record(message.operation, {"run": run[:_LONGEST_RUN]}, [], {}))

    def _change(self, message: Message, reply: Reply) -> None:
        worker, sequence = message.worker, message.sequence
        made = self.shard.marks.get(worker, 0)
        if sequence <= made:
            self.counts.repeated += 1
            self._answer_when_due(message, reply)
            return
        expected = max(self._accepted.get(worker, 0), made) + 1
        if sequence > expected:
            raise WireError("order", f"request {sequence} of worker {worker} comes before {expected}")
        self._accepted[worker] = max(sequence, expected - 1)
        if self._rule == "sync":
            gathered = self._rounds.setdefault(sequence, {})
            gathered[worker] = message, reply
            if len(gathered) == self._workers:
                self._make(self._rounds.pop(sequence))
        else:
            self._make({worker: (message, reply)})

    def _make(self, gathered: dict[int, tuple[Message, Reply]]) -> None:
        """Check, log, apply, answer."""
        together = [gathered[worker] for worker in sorted(gathered)]
        messages = [message for message, _ in together]
        try:
            if len({message.operation for message in messages}) > 1:
                raise WireError("request", "workers ask for different changes; they run different scripts?")
            record = self.shard.prepare(messages)
            refusal = self._write_and_apply(record)
        except WireError as error:
            self._forget(messages)
            for message, reply in together:
                reply(message.refuse(str(error), error.kind))
            return
        self.counts.applied += 1
        for message, reply in together:
            if refusal:
                reply(message.refuse(refusal, "failed"))
                continue
            try:
                self._answer_when_due(message, reply)
            except WireError as error:
                reply(message.refuse(str(error), "failed"))
        self._wake()

    def _write_and_apply(self, record: Record) -> str:
        """Why the change failed when it was made, "" if it did not.

        Raises:
            WireError: it could not be written, and has not been made.
        """
        if self._journal is not None:
            try:
                self._journal.append(record)
            except RondeError as error:
                raise WireError("storage", str(error)) from None
        try:
            self.shard.apply(record)
        except Exception as error:  # it is in the log, and fails again with every restart: nobody dies of it
            return f"{record.operation.name.lower()}: {error}"
        return ""

    def _forget(self, messages: list[Message]) -> None:
        """A change that nobody could make leaves a gap, which those requests must not wait at."""
        for message in messages:
            self._accepted[message.worker] = message.sequence - 1

    def _answer_when_due(self, message: Message, reply: Reply) -> None:
        if self._is_due(message):
            self._deferred.pop((message.worker, message.request), None)
            self._answer(message, reply)
        else:
            if len(self._deferred) >= _MOST_DEFERRED:
                raise WireError("deferred", f"{len(self._deferred)} requests wait already")
            self._deferred[message.worker, message.request] = message, reply

    def _answer(self, message: Message, reply: Reply) -> None:
        if self.shard.is_change(message.operation):
            reply(message.answer(*self.shard.answer(message)))
        else:
            self.counts.reads += 1
            answer = message.answer(*self.shard.read(message))
            reply(dataclasses.replace(answer, sequence=self.shard.marks.get(message.worker, 0)))

    def _is_due(self, message: Message) -> bool:
        """Whether the state is new enough for this answer."""
        if not self.shard.is_change(message.operation):
            return self.shard.marks.get(message.worker, 0) >= message.clock
        if self._rule != "bounded":
            return True
        there = self._presence.there - self.shard.left
        slowest = min((self.shard.clocks.get(worker, 0) for worker in there), default=message.clock)
        return slowest >= message.clock - self._staleness

    def _wake(self) -> None:
        for key, (message, reply) in list(self._deferred.items()):
            if self._is_due(message):
                del self._deferred[key]
                try:
                    self._answer(message, reply)
                except WireError as error:
                    reply(message.refuse(str(error), error.kind))
