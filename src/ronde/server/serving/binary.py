"""A replica with the binary protocol of parameter servers; read-only.

    HELLO, STATUS                                             published version and counters
    LOOK_UP   {"table": "user"}             int64 [n]         {"version": 7}, float32 [n, dim]
    PREDICT   {"inputs": ["x", ...] | null}  an array each    {"version": 7, "outputs": skeleton}, arrays

Clients prove the run's token. Operations that change state are refused by name.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, time
from typing import Any

import numpy as np
import torch

from ronde.errors import RondeError
from ronde.server.array_codec import Array
from ronde.server.serving.limits import MOST_BYTES, MOST_IDS
from ronde.server.serving.metrics import Metrics
from ronde.server.serving.program import NoProgram, Unfit
from ronde.server.serving.replica import NoSuchTable, Replica
from ronde.server.serving.structure import take_apart
from ronde.server.transport.service import Reply, Service
from ronde.server.transport.wire import Limits, Message, Opcode, WireError

__all__ = ["BinaryReplica", "ReadOnly"]

_META_BYTES = 1 << 16
_LIMITS = Limits(nbytes=MOST_BYTES + 2 * _META_BYTES, meta_bytes=_META_BYTES, arrays=1024)
_MOST_PREDICTIONS = 256
_KINDS: Mapping[type[RondeError], str] = {NoSuchTable: "table", NoProgram: "program", Unfit: "unfit"}


class ReadOnly:
    """Answers requests about a replica; predictions run one by one on a thread.

    Args:
        wake: function that schedules a `tick`; called from that thread.
        refused: number of refused messages, by kind.
    """

    def __init__(
        self, replica: Replica, metrics: Metrics, wake: Callable[[], None], refused: Mapping[str, int]
    ) -> None:
        self._replica, self._metrics, self._wake, self._refused = replica, metrics, wake, refused
        self._predictor = ThreadPoolExecutor(1, "ronde-predict")
        self._predictor.submit(int)  # start its thread now, not at the first request
        self._waiting = 0
        self._made: queue.SimpleQueue[tuple[Message, Reply]] = queue.SimpleQueue()

    def handle(self, message: Message, reply: Reply) -> None:
        begin = perf_counter()
        match message.operation:
            case Opcode.HELLO | Opcode.STATUS:
                reply(message.answer(self._status()))
            case Opcode.LOOK_UP:
                reply(self._counted("binary-lookup", message, self._look_up, begin))
            case Opcode.PREDICT:
                self._predict_later(message, reply, begin)
            case _:
                name = message.operation.name.lower()
                raise WireError("read-only", f"{name}: a replica is read-only; use look_up or predict [R748]")

    def tick(self) -> None:
        """Send finished predictions."""
        while not self._made.empty():
            answer, reply = self._made.get()
            self._waiting -= 1
            reply(answer)

    def close(self) -> None:
        """Cancel pending predictions."""
        self._predictor.shutdown(cancel_futures=True)

    def _predict_later(self, message: Message, reply: Reply, begin: float) -> None:
        if self._waiting >= _MOST_PREDICTIONS:
            raise WireError(
                "busy", f"predict: {self._waiting} predictions wait already; ask again later [R748]"
            )
        self._waiting += 1

        def predict() -> None:
            self._made.put((self._counted("binary-predict", message, self._predict, begin), reply))
            self._wake()

        self._predictor.submit(predict)

    def _counted(self, endpoint: str, message: Message, answer: Any, begin: float) -> Message:
        """Return the answer or a refusal, and count it in the metrics."""
        try:
            made = message.answer(*answer(message))
        except RondeError as error:
            kind = error.kind if isinstance(error, WireError) else _KINDS.get(type(error), "request")
            made = message.refuse(f"{message.operation.name.lower()}: {error}"[:600], kind)
        except Exception as error:  # a defect here or in a model must not stop the replica
            made = message.refuse(f"{type(error).__name__} {error}"[:300], "defect")
        status = "done" if made.operation is Opcode.DONE else "refused"
        self._metrics.add(endpoint, status, perf_counter() - begin)
        return made

    def _look_up(self, message: Message) -> tuple[dict[str, Any], list[Array]]:
        table = message.meta.get("table")
        if not isinstance(table, str):
            raise WireError("request", "the name of the table must be a text [R748]")
        if len(message.arrays) != 1 or message.arrays[0].dtype != np.int64 or message.arrays[0].ndim != 1:
            raise WireError("request", "ids must be one array of int64 [n] [R748]")
        (ids,) = message.arrays
        if len(ids) > MOST_IDS:
            raise WireError(
                "request", f"{len(ids)} ids were asked for; {MOST_IDS} are possible at a time [R744]"
            )
        snapshot = self._replica.snapshot
        return {"version": snapshot.version}, [self._replica.look_up(table, ids, snapshot)]

    def _predict(self, message: Message) -> tuple[dict[str, Any], list[Array]]:
        snapshot = self._replica.snapshot
        outputs = self._replica.predict(_inputs(message), snapshot)
        arrays: list[Array] = []
        try:
            told = take_apart(outputs, _array_of, arrays)
        except TypeError as error:
            raise Unfit(f"the model's output cannot be sent: {error} [R748]") from None
        return {"version": snapshot.version, "outputs": told}, arrays

    def _status(self) -> dict[str, Any]:
        replica, snapshot = self._replica, self._replica.snapshot
        return {
            "version": snapshot.version,
            "step": snapshot.step,
            "pinned": replica.pinned,
            "lag": replica.lag,
            "age": time() - snapshot.time,
            "trouble": replica.trouble,
            "tables": snapshot.dims,
            "inputs": snapshot.inputs,
            "ids_looked_up": replica.counts.asked,
            "ids_found": replica.counts.found,
            "refused": dict(self._refused),
        }


class BinaryReplica:
    """A replica's binary endpoint: listens at once, answers after `start`.

    Args:
        endpoint: ZeroMQ endpoint, as for `Service`.
        token: token that clients prove.
        tell: function that tells the operator of senders without it.

    Raises:
        UsageError: the endpoint is not available.

    Attributes:
        endpoint: endpoint with the resolved port.
        refused: number of refused messages, by kind.
    """

    def __init__(
        self, endpoint: str, token: bytes, tell: Callable[[str], object] = lambda words: None
    ) -> None:
        self._service = Service(endpoint, token, self, _LIMITS, tell=tell)
        self._thread: threading.Thread | None = None
        self._answers: ReadOnly | None = None
        self.endpoint, self.refused = self._service.endpoint, self._service.refused

    def start(self, replica: Replica, metrics: Metrics) -> None:
        """Answer requests on a thread."""
        self._answers = ReadOnly(replica, metrics, self._service.wake, self.refused)
        self._thread = threading.Thread(target=self._service.run, name="ronde-binary", daemon=True)
        self._thread.start()

    def handle(self, message: Message, reply: Reply) -> None:
        assert self._answers is not None
        self._answers.handle(message, reply)

    def tick(self) -> None:
        assert self._answers is not None
        self._answers.tick()

    def close(self) -> None:
        """Stop answering, and close the endpoint."""
        if self._thread is not None and self._answers is not None:
            self._answers.close()
            self._service.stop()
            self._thread.join()
        self._service.close()


def _inputs(message: Message) -> Mapping[str, torch.Tensor] | list[torch.Tensor]:
    # A copy: arrays from the wire are read-only.
    tensors = [torch.from_numpy(np.array(array)) for array in message.arrays]
    match message.meta.get("inputs"):
        case None:
            return tensors
        case [*names] if _all_once(names) and len(names) == len(tensors):
            return dict(zip(names, tensors, strict=True))
        case _:
            raise WireError("request", "name each input once, or none of them [R748]")


def _all_once(names: list[Any]) -> bool:
    return all(isinstance(name, str) for name in names) and len({*names}) == len(names)


def _array_of(value: Any) -> Array | None:
    if not isinstance(value, torch.Tensor):
        return None
    held = value.detach().cpu()
    return (held.float() if held.dtype == torch.bfloat16 else held).numpy()
