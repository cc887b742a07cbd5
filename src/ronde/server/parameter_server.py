"""One server's protocol: changes are logged, applied and then answered, each exactly once.

`sync`: a change combines one request of every worker, all with the same sequence number, in rank order; so
    the result does not depend on arrival order. `async`: each request is applied at once. `bounded`:
    likewise, but a worker gets no answer while the slowest one is more than `staleness` steps behind it
    (stale synchronous parallel, Ho et al. 2013). A repeated request, known by worker and sequence number, is
    answered again and changes nothing; one out of order is refused, and the worker sends it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, Protocol

from ronde.errors import RondeError
from ronde.server.handshake import misfit
from ronde.server.liveness import Presence
from ronde.server.record import Record
from ronde.server.shard import ServerShard
from ronde.server.transport.service import Reply
from ronde.server.transport.wire import Message, Opcode, WireError

__all__ = ["ParameterServer", "Rule", "ServerCounters", "WriteAheadLog"]

# Limit of postponed answers; each holds a message.
_MOST_DEFERRED = 65_536
_LONGEST_RUN = 256

Rule = Literal["sync", "async", "bounded"]


class WriteAheadLog(Protocol):
    """A write-ahead log: changes are written to it before they are applied."""

    def append(self, record: Record) -> None:
        """Write a change; on return it survives this process.

        Raises:
            RondeError: the change was not written and must not be applied.
        """
        ...

    def tick(self) -> None:
        """Run periodic work; called many times a second, between changes."""
        ...


@dataclasses.dataclass(slots=True)
class ServerCounters:
    """Counters of a server since its start.

    Attributes:
        applied: changes applied.
        repeated: repeated requests, which were answered again and changed nothing.
        reads: read requests answered.
    """

    applied: int = 0
    repeated: int = 0
    reads: int = 0


class ParameterServer:
    """The protocol of a server for the workers of one run.

    Args:
        shard: the server's state.
        journal: the write-ahead log; None: no log.
        workers: number of workers.
        rule: consistency model, see above.
        staleness: steps that the slowest worker may be behind under `bounded`.
        about: entries of the answer to HELLO and STATUS: index of this server, number of servers, number of
            starts.
        on_stop: function called on a STOP request of a worker or launcher.
    """

    def __init__(
        self,
        shard: ServerShard,
        journal: WriteAheadLog | None,
        *,
        workers: int,
        rule: Rule = "sync",
        staleness: int = 0,
        about: dict[str, Any] | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.shard = shard
        self.counts = ServerCounters()
        self._journal = journal
        self._workers = workers
        self._rule = rule
        self._staleness = staleness
        self._about = about or {}
        self._on_stop = on_stop
        # Requests that wait for the other workers' requests, by sequence and worker.
        self._rounds: dict[int, dict[int, tuple[Message, Reply]]] = {}
        # Each worker's last request that waits in a round or was applied.
        self._accepted: dict[int, int] = {}
        # Requests that wait until the state is new enough, by worker and request id.
        self._deferred: dict[tuple[int, int], tuple[Message, Reply]] = {}
        self._presence = Presence(workers, shard.marks)
        # Each worker's number of restarts; messages of its earlier lives are refused.
        self._incarnations: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """Return the number of unanswered requests."""
        return len(self._deferred) + sum(map(len, self._rounds.values()))

    def handle(self, message: Message, reply: Reply) -> None:
        """Answer a message, at once or when it is due; raises `WireError` on refusal."""
        if message.incarnation < self._incarnations.get(message.worker, 0):
            raise WireError(
                "incarnation", f"worker {message.worker} has been started again since it sent this [R403]"
            )
        if message.operation in (Opcode.HELLO, Opcode.STATUS, Opcode.LEAVE, Opcode.STOP):
            if message.operation is Opcode.STATUS and message.worker < self._workers:
                self._presence.heard(message.worker)
            self._administer(message, reply)
        elif not 0 <= message.worker < self._workers:
            raise WireError("worker", f"there is no worker {message.worker} among {self._workers} [R426]")
        else:
            self._presence.heard(message.worker)
            self._serve(message, reply)

    def _serve(self, message: Message, reply: Reply) -> None:
        if self.shard.is_change(message.operation):
            self._change(message, reply)
        else:
            self._answer_when_due(message, reply)

    def tick(self) -> None:
        """Stop waiting for lost workers, and let the journal work."""
        gone = self._presence.look()
        if gone:
            if self._rule == "bounded":  # a restarted server must not wait for them either
                marks = {worker: self.shard.marks.get(worker, 0) for worker in gone}
                with contextlib.suppress(WireError):  # disk full: a restarted server waits a minute for them
                    self._write_and_apply(Record(Opcode.LEAVE, {}, [], marks))
            self._wake()
        if self._journal is not None:
            self._journal.tick()

    def _administer(self, message: Message, reply: Reply) -> None:
        if message.operation is Opcode.STOP:
            self._on_stop()
        elif message.operation is not Opcode.STATUS and not 0 <= message.worker < self._workers:
            raise WireError("worker", f"there is no worker {message.worker} among {self._workers} [R426]")
        elif message.operation is Opcode.LEAVE:
            self._presence.left(message.worker)
            self._write_and_apply(Record(message.operation, {}, [], {message.worker: message.sequence}))
            self._wake()
        elif message.operation is Opcode.HELLO:
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
        """Check that a worker belongs to this server's run, and record the run's id.

        Raises:
            WireError: the worker belongs to another run or configuration.
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
            raise WireError(
                "order",
                (
                    f"request {sequence} of worker {worker} is out of order: request {expected} is missing "
                    "[R426]"
                ),
            )
        self._accepted[worker] = max(sequence, expected - 1)
        if self._rule == "sync":
            gathered = self._rounds.setdefault(sequence, {})
            gathered[worker] = message, reply
            if len(gathered) == self._workers:
                self._make(self._rounds.pop(sequence))
        else:
            self._make({worker: (message, reply)})

    def _make(self, gathered: dict[int, tuple[Message, Reply]]) -> None:
        """Validate, log, apply and answer one change."""
        together = [gathered[worker] for worker in sorted(gathered)]
        messages = [message for message, _ in together]
        try:
            if len({message.operation for message in messages}) > 1:
                raise WireError(
                    "request", "workers ask for different changes; run the same script on all of them [R426]"
                )
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
        """Log and apply a change; return an error if applying failed, else "".

        Raises:
            WireError: the log was not written, and the change was not applied.
        """
        if self._journal is not None:
            try:
                self._journal.append(record)
            except RondeError as error:
                raise WireError("storage", str(error)) from None
        try:
            self.shard.apply(record)
        except Exception as error:  # it is logged, and fails again at each restart, so continue
            return f"{record.operation.name.lower()}: {error}"
        return ""

    def _forget(self, messages: list[Message]) -> None:
        """Reset the expected sequence numbers after a refused change."""
        for message in messages:
            self._accepted[message.worker] = message.sequence - 1

    def _answer_when_due(self, message: Message, reply: Reply) -> None:
        if self._is_due(message):
            self._deferred.pop((message.worker, message.request), None)
            self._answer(message, reply)
        else:
            if len(self._deferred) >= _MOST_DEFERRED:
                raise WireError(
                    "deferred",
                    (
                        f"the server has {len(self._deferred)} waiting requests, its limit; send the request "
                        "again later [R430]"
                    ),
                )
            self._deferred[message.worker, message.request] = message, reply

    def _answer(self, message: Message, reply: Reply) -> None:
        if self.shard.is_change(message.operation):
            reply(message.answer(*self.shard.answer(message)))
        else:
            self.counts.reads += 1
            answer = message.answer(*self.shard.read(message))
            reply(dataclasses.replace(answer, sequence=self.shard.marks.get(message.worker, 0)))

    def _is_due(self, message: Message) -> bool:
        """Return whether the state is new enough to answer this message."""
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
