"""A worker's client: sends requests, awaits answers, and resends lost requests.

A request without an answer is first followed by a question: which requests has the server on this connection?
Only missing ones are sent again. A repeated request is harmless: servers know changes by worker and sequence
number. So a restarted server gets every request that it had not answered. A background thread does this for
requests that no caller waits for: another worker may depend on them while this one waits for it in a
collective. The thread also sends a sign of life now and then, as this worker may be busy for long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns  # bound here, because `time` is patched for scripts
from typing import Any

import numpy as np
import zmq

from ronde.errors import PeerLost
from ronde.server.array_codec import Array
from ronde.server.transport.arena import OwnArena
from ronde.server.transport.buffers import BufferPool
from ronde.server.transport.connection import SLICE_MS, Connection
from ronde.server.transport.requests import PendingRequest, ServerRefused, changes_lost, refusal_of
from ronde.server.transport.wire import Message, Opcode, WireError, decode, encode

__all__ = ["Client", "PendingRequest", "ServerRefused"]

_SMALL_BYTES = 16 << 10
_ALIVE_S = 15.0
_NOTICE_S = 30.0  # a server restarts within seconds, also from its log
_QUESTION_S = 0.05
# Kinds of refusals after which the request is sent again.
_AGAIN = ("hello", "order", "seal", "replay", "truncated", "envelope", "meta", "operation", "oversized")
_MOST_AGAIN = 20


class Client:
    """One worker's connections to all servers of a run.

    Args:
        endpoints: endpoint of each server, as for `Service`.
        token: the run's token.
        worker, workers: rank of this worker, and number of workers.
        incarnation: number of restarts of this worker.
        timeout: seconds for which a server may be unreachable.
        patience: seconds without an answer before the server is asked about its requests; doubles up to five
            times as many.
        silence: seconds of silence after such a question before the connection is replaced.
        run: id of the run; "": servers cannot tell runs apart.
        expects: required configuration of servers (`update`, `staleness`).
        say: function that tells the user about a server that stops or resumes answering.

    Attributes:
        waited_ns: nanoseconds spent waiting for answers.
        exchanged_bytes: bytes of arrays sent and received, shared memory included.

    Raises:
        UsageError: an endpoint is malformed.
        PeerLost: a server was unreachable for the timeout.
        ServerRefused: a server belongs to another run or configuration.
    """

    def __init__(  # noqa: PLR0913 - options of a connection
        self,
        endpoints: Sequence[str],
        token: bytes,
        *,
        worker: int = 0,
        workers: int = 1,
        incarnation: int = 0,
        timeout: float = 1800.0,
        silence: float = 5.0,
        patience: float = 1.0,
        run: str = "",
        expects: Mapping[str, Any] | None = None,
        say: Callable[[str], object] = lambda words: None,
    ) -> None:
        self.endpoints = list(endpoints)
        self.worker, self.workers = worker, workers
        self.waited_ns = self.exchanged_bytes = 0
        here = all(endpoint.startswith("ipc://") for endpoint in self.endpoints)
        self.arena = OwnArena() if here else None
        self._about = {"run": run, **(expects or {})}
        self._incarnation = incarnation
        self._timeout = timeout
        self._silence, self._patience = silence, patience
        self._say_so = say
        # Time of each server's last message; servers of which the user was told that they are silent.
        self._heard_at = [time.monotonic()] * len(self.endpoints)
        self._told_of: set[int] = set()
        # Per server, since when a question about its requests is unanswered.
        self._asked_state: list[float | None] = [None] * len(self.endpoints)
        # Per server, the last unanswered question: its request id, and the requests that it names.
        self._questions: dict[int, tuple[int, list[int]]] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._context = zmq.Context()
        self._connections: list[Connection] = []
        self._poller = zmq.Poller()
        self._waiting: dict[int, PendingRequest] = {}
        #: Functions that `finish` calls, for requests that no caller waited for.
        self.before_end: list[Callable[[], None]] = []
        self._count = 0
        # The last change that each server has confirmed; pending HELLOs by request; changes lost by servers.
        self._confirmed = [0] * len(self.endpoints)
        self._greeted: dict[int, int] = {}
        # By server, the number of the first refused change, and the reason.
        self._refused: dict[int, tuple[int, str]] = {}
        self._lost: dict[int, int] = {}
        self._sequences = [0] * self.servers
        try:
            pool = BufferPool()
            for server in range(self.servers):
                self._connections.append(self._connect(server, token, pool))
            greeted = [self.send(server, Opcode.HELLO, self._hello(server)) for server in range(self.servers)]
            greetings = self.wait(greeted)
        except BaseException:
            self.close()
            raise
        self._sequences = [int(each.meta.get("sequence", 0)) for each in greetings]
        self._confirmed = list(self._sequences)
        threading.Thread(target=self._keep_asking, name="ronde-requests", daemon=True).start()

    @property
    def servers(self) -> int:
        return len(self.endpoints)

    @property
    def sequences(self) -> list[int]:
        """Per server, the sequence number of this worker's last change."""
        return list(self._sequences)

    def send(
        self,
        server: int,
        operation: Opcode,
        meta: dict[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        *,
        clock: int = 0,
        changes: bool = False,
    ) -> PendingRequest:
        """Send a request to one server; arrays must not change before the answer.

        Args:
            changes: whether the request changes the server's state; it then takes effect exactly once.

        Raises:
            ServerRefused: the request is larger than a server accepts.
        """
        with self._lock:
            self._count += 1
            if changes:
                self._sequences[server] += 1
            message = Message(
                operation,
                meta or {},
                arrays,
                self.worker,
                self._incarnation,
                self._sequences[server] if changes else 0,
                clock,
                self._count,
            )
            self.exchanged_bytes += sum(array.nbytes for array in arrays)
            request = PendingRequest(server, message, patience=self._patience)
            self._waiting[self._count] = request
            try:
                self._ask(request)
            except WireError as error:
                del self._waiting[self._count]
                self._sequences[server] -= changes
                raise ServerRefused(f"server {server}: {operation.name.lower()}: {error}") from None
            return request

    def wait(self, requests: Iterable[PendingRequest]) -> list[Message]:
        """Wait for the answers to these requests, and return them.

        Raises:
            ServerRefused: a server refused a request.
            PeerLost: a server did not answer within the timeout.
        """
        entered = perf_counter_ns()
        try:
            return self._answers(requests)
        finally:
            self.waited_ns += perf_counter_ns() - entered

    def _answers(self, requests: Iterable[PendingRequest]) -> list[Message]:
        answers: list[Message] = []
        for request in requests:
            begun = time.monotonic()
            while request.answer is None:
                with self._lock:
                    self._receive(SLICE_MS)
                    self._ask_again()
                    if request.answer is None:
                        self._tell_of_silence(request.server, begun)
                if request.answer is None and request.server in self._lost:
                    raise ServerRefused(changes_lost(request.server, self._lost[request.server]))
                refused, why = self._refused.get(request.server, (0, ""))
                is_read = not request.message.sequence
                if request.answer is None and is_read and 0 < refused <= request.message.clock:
                    raise ServerRefused(why)  # the answer must contain a change that was refused
                if request.answer is None and time.monotonic() - begun > self._timeout:
                    raise PeerLost(
                        f"server {request.server} at {self.endpoints[request.server]} has not answered for "
                        f"{self._timeout:g} s ({request.message.operation.name.lower()}); see its log in the "
                        "run directory, or start it again with `ronde server` [R421]"
                    )
            answer = request.answer
            if answer.operation is Opcode.REFUSED:
                why = str(answer.meta.get("why", "refused"))
                raise ServerRefused(refusal_of(request.server, answer), why)
            answers.append(answer)
        return answers

    def settle(self) -> None:
        """Wait for the answers to all pending requests; raises as `wait` does."""
        with self._lock:
            waiting = list(self._waiting.values())
        self.wait(waiting)

    def withdraw(self, request: PendingRequest) -> None:
        """Stop resending a request that changes nothing."""
        with self._lock:
            self._waiting.pop(request.message.request, None)

    def _tell_of_silence(self, server: int, begun: float) -> None:
        """Tell the user once about a server that is silent while a caller waits."""
        silent = time.monotonic() - max(begun, self._heard_at[server])
        if silent > _NOTICE_S and server not in self._told_of:
            self._told_of.add(server)
            self._say_so(
                f"server {server} at {self.endpoints[server]} has not answered for {silent:.0f} s; it is "
                f"waited for up to {self._timeout:g} s (--timeout) [R421]"
            )

    def room(self, nbytes: int) -> Array:
        """Allocate uint8 [nbytes] for requests or answers, shared with servers on this host.

        Small arrays are sent in frames, which is as fast as sending their place.

        Raises:
            OSError: the memory cannot be reserved.
        """
        if self.arena is None or nbytes <= _SMALL_BYTES:
            return np.empty(nbytes, np.uint8)
        with self._lock:
            room, is_new = self.arena.take(nbytes)
            if is_new:
                for server in range(self.servers):
                    self._introduce(server)
            return room

    def give_back(self, room: Array) -> None:
        """Free memory from `room`. No pending request may still use it."""
        if self.arena is not None and room.nbytes > _SMALL_BYTES:
            with self._lock:
                self.arena.give_back(room)

    def into(self, *rooms: Array) -> dict[str, Any]:
        """Return the meta entry that requests answers in these buffers, if they are shared."""
        if self.arena is None:
            return {}
        places = [self.arena.place(room) for room in rooms]
        return {} if all(place is None for place in places) else {"into": places}

    def poll(self) -> None:
        """Process arrived answers without waiting."""
        with self._lock:
            self._receive(0)
            self._ask_again()

    def finish(self) -> None:
        """Run `before_end`: wait for requests without a waiter; raises as `wait` does."""
        for settle in self.before_end:
            settle()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._context.destroy(linger=0)
            if self.arena is not None:
                self.arena.close()

    def _keep_asking(self) -> None:
        heard = time.monotonic()
        while not self._closed.wait(_QUESTION_S if self._questions else self._patience):
            with self._lock, contextlib.suppress(zmq.ZMQError):  # the next `wait` reports it
                if self._closed.is_set():
                    return
                self._receive(0)
                self._ask_again()
                if time.monotonic() - heard > _ALIVE_S:  # a server treats a minute of silence as death
                    heard = time.monotonic()
                    for server in range(self.servers):
                        self._say(server, Opcode.STATUS, {})

    def _connect(self, server: int, token: bytes, pool: BufferPool) -> Connection:
        return Connection(
            self._context,
            self._poller,
            self.endpoints[server],
            token,
            pool,
            opened=lambda: self._opened(server),
            failed=lambda kind, why: self._refuse_all(server, kind, why),
        )

    def _opened(self, server: int) -> None:
        """Send everything that a new session does not have yet."""
        waiting = [each for each in self._waiting.values() if each.server == server]
        if all(each.message.operation is not Opcode.HELLO for each in waiting):
            self._introduce(server)
        self._ask_all_again(server)

    def _refuse_all(self, server: int, kind: str, why: str) -> None:
        """End all requests to a server with which no session is possible."""
        for request in [each for each in self._waiting.values() if each.server == server]:
            answer = request.message.refuse(why, kind)
            self._not_made(request, answer)
            self._end(request, answer)

    def _hello(self, server: int) -> dict[str, Any]:
        hello = {"workers": self.workers, "servers": self.servers, "server": server, **self._about}
        if self.arena is not None:
            hello |= {"arena": self.arena.described, "process": os.getpid()}
        return hello

    def _ask(self, request: PendingRequest, *, again: bool = False) -> None:
        if again and "into" in request.message.meta:
            # By the second answer the memory may be in use again: receive that answer in frames.
            meta = {name: value for name, value in request.message.meta.items() if name != "into"}
            request.message = dataclasses.replace(request.message, meta=meta)
        request.asked_at = time.monotonic()
        self._post(request.server, encode(request.message, self.arena), request.message.request)

    def _ask_again(self) -> None:
        """Ask servers about overdue requests."""
        now = time.monotonic()
        silent: set[int] = set()
        for request in self._waiting.values():
            if now - request.asked_at > request.patience:
                request.patience = min(2 * request.patience, 5 * self._patience)
                request.asked_at = now
                silent.add(request.server)
        for server in silent:
            if not self._reconnect_if_silent(server, now):
                is_open = self._connections[server].is_open
                asked = [number for number, each in self._waiting.items() if each.server == server]
                self._say(server, Opcode.STATUS, {"asked": asked})
                if is_open:  # else the handshake was repeated
                    self._questions[server] = self._count, asked

    def _send_what_is_missing(self, server: int, asked: list[int], answer: Message) -> None:
        """Resend requests that the server lacks: a connection keeps order, so they were lost."""
        has = [] if answer.operation is Opcode.REFUSED else answer.meta.get("waiting")
        if not isinstance(has, list):  # the server does not know this connection
            self._introduce(server)
            self._ask_all_again(server)
            return
        for number in asked:
            request = self._waiting.get(number)
            if request is not None and number not in has:
                self._ask(request, again=True)

    def _reconnect_if_silent(self, server: int, now: float) -> bool:
        """Replace the connection to a server that does not answer a status question.

        A damaged length makes the other end wait for bytes that never come.
        """
        since = self._asked_state[server]
        if since is None:
            self._asked_state[server] = now
            return False
        if now - since < self._silence:
            return False
        self._asked_state[server] = None
        self._questions.pop(server, None)
        self._connections[server].renew()
        return True

    def _receive(self, timeout_ms: int) -> None:
        sockets = [each.socket for each in self._connections]
        if len(sockets) == 1 and timeout_ms:  # saves a poll
            with contextlib.suppress(zmq.Again):
                self._take(0, sockets[0].recv_multipart(copy=False))
            return
        for socket, _ in self._poller.poll(timeout_ms):
            server = sockets.index(socket)
            while self._connections[server].socket is socket:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                self._take(server, frames)

    def _post(self, server: int, frames: list[Any], request: int) -> None:
        self._connections[server].post(frames, request)

    def _take(self, server: int, frames: list[Any]) -> None:
        self._asked_state[server] = None
        self._heard_at[server] = time.monotonic()
        if server in self._told_of:
            self._told_of.discard(server)
            self._say_so(f"server {server} at {self.endpoints[server]} answers again [R421]")
        opened = self._connections[server].take(frames)
        if opened is None:
            return
        try:
            answer = decode(opened, arena=self.arena)
        except WireError:
            return  # the request will be sent again
        if self._greeted.pop(answer.request, None) is not None:
            self._compare(server, answer)
        number, asked = self._questions.get(server, (0, []))
        if number == answer.request:
            self._questions.pop(server, None)
            self._send_what_is_missing(server, asked, answer)
        request = self._waiting.get(answer.request)
        if request is None or request.server != server:
            return  # a repeated answer
        if answer.operation is Opcode.REFUSED:
            if self._may_ask_again(request, answer):
                return
            self._not_made(request, answer)
        self.exchanged_bytes += sum(array.nbytes for array in answer.arrays)
        self._end(request, answer)

    def _end(self, request: PendingRequest, answer: Message) -> None:
        del self._waiting[request.message.request]
        request.answer = answer
        server = request.server
        if answer.operation is Opcode.DONE and request.message.sequence:
            self._confirmed[server] = max(self._confirmed[server], request.message.sequence)
            if self._refused.get(server, (0, ""))[0] <= request.message.sequence:
                self._refused.pop(server, None)  # accepts changes again

    def _compare(self, server: int, greeting: Message) -> None:
        """Check that a restarted server still has every change that it confirmed."""
        missing = self._confirmed[server] - int(greeting.meta.get("sequence", 0))
        if greeting.operation is Opcode.DONE and missing > 0:
            self._lost[server] = missing

    def _not_made(self, request: PendingRequest, refusal: Message) -> None:
        """Release the sequence number of a refused change for the next one."""
        server, sequence = request.server, request.message.sequence
        if refusal.meta.get("kind") == "failed" or not sequence:
            return
        self._refused.setdefault(server, (sequence, refusal_of(server, refusal)))
        if sequence == self._sequences[server]:
            self._sequences[server] -= 1

    def _may_ask_again(self, request: PendingRequest, answer: Message) -> bool:
        request.refusals += 1
        if answer.meta.get("kind") not in _AGAIN or request.refusals > _MOST_AGAIN:
            return False
        if answer.meta.get("kind") == "hello":
            self._introduce(request.server)
        if answer.meta.get("kind") in ("hello", "order"):
            self._ask_all_again(request.server)
        else:
            self._ask(request, again=True)
        return True

    def _ask_all_again(self, server: int) -> None:
        """Send all pending requests of a server again, in their original order."""
        for request in [each for each in self._waiting.values() if each.server == server]:
            self._ask(request, again=True)

    def _introduce(self, server: int) -> None:
        """Send HELLO to a server that does not know this connection."""
        self._say(server, Opcode.HELLO, self._hello(server))

    def _say(self, server: int, operation: Opcode, meta: dict[str, Any]) -> None:
        """Send a message without a waiting caller."""
        self._count += 1
        said = Message(
            operation, meta, worker=self.worker, incarnation=self._incarnation, request=self._count
        )
        if operation is Opcode.HELLO:
            self._greeted[self._count] = server
        self._post(server, encode(said), self._count)
