"""A client of `ronde serve --binary`: numpy in and out, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ronde.errors import PeerLost, RondeError, UsageError
from ronde.launch.server_config import TOKEN_KEY, read_token
from ronde.server.array_codec import Array
from ronde.server.serving.limits import MOST_BYTES, MOST_IDS
from ronde.server.serving.structure import put_together, travels_as

try:
    import zmq

    from ronde.server.transport.client import Client, ServerRefused
    from ronde.server.transport.wire import Message, Opcode
except ImportError as missing:
    raise UsageError(
        f"ronde.ReplicaClient needs a package that is missing ({missing}): pip install 'ronde[server]' [R746]"
    ) from None

__all__ = ["Predicted", "ReplicaClient", "ReplicaGone", "Rows"]


class ReplicaGone(RondeError):
    """Raised when a replica did not answer within the timeout."""


class Rows(NamedTuple):
    """Rows of a table, and the model's version."""

    rows: np.ndarray[Any, Any]
    version: int


class Predicted(NamedTuple):
    """Outputs of a model, and its version."""

    outputs: Any
    version: int


class ReplicaClient:
    """A client of a replica that was started by `ronde serve --binary`.

    It reconnects after a lost connection, and waits for a replica that restarts. Use one client per thread.

    Args:
        endpoint: address that `ronde serve` prints, such as "tcp://127.0.0.1:8766".
        token: 32 hexadecimal digits, the replica's token; None: RONDE_SERVER_TOKEN.
        timeout: seconds to wait for an answer.

    Raises:
        UsageError: the endpoint or the token is malformed.
        ServerRefused: the replica has another token.
        ReplicaGone: the replica did not answer within the timeout.
    """

    def __init__(self, endpoint: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        _check_endpoint(endpoint)
        if not 0 < timeout < float("inf"):
            raise UsageError(f"timeout={timeout:g} is not a number of seconds above 0; try timeout=30 [R746]")
        key = read_token(os.environ if token is None else {TOKEN_KEY: token})
        self.endpoint = endpoint
        self._timeout = timeout
        # A random id by which the replica tells clients apart.
        own = int.from_bytes(os.urandom(4), "little")
        try:
            self._client = Client([endpoint], bytes.fromhex(key), worker=own, timeout=timeout)
        except PeerLost:
            raise self._gone() from None
        except ServerRefused as error:
            raise self._refused(error) from None

    def look_up(self, table: str, ids: Any) -> Rows:
        """Return the row of each id, or its first values if it has none.

        Args:
            table: name of the table, its path in the model.
            ids: integers of any shape, at most 100,000.

        Returns:
            rows, float32 `[*ids.shape, dim]` (float64 if the table was trained in it), and their version.

        Raises:
            UsageError: ids are not integers, or too many.
            ServerRefused: the model has no such table.
            ReplicaGone: the replica did not answer within the timeout.
        """
        if not isinstance(table, str):
            raise UsageError(f"give the name of the table, not a {type(table).__name__}; see status() [R748]")
        flat, shape = _ids(ids)
        answer = self._ask(Opcode.LOOK_UP, {"table": table}, [flat])
        (rows,) = answer.arrays
        return Rows(np.array(rows).reshape(*shape, rows.shape[1]), answer.meta["version"])

    def predict(self, inputs: Mapping[str, Any] | Sequence[Any]) -> Predicted:
        """Return the model's outputs in evaluation mode.

        Args:
            inputs: arrays by name, or a sequence of all arrays in order; other values go through
                `np.asarray`.

        Returns:
            `outputs`, in the structure that the model returns, with arrays for tensors (bfloat16 becomes
            float32), and `version`.

        Raises:
            UsageError: an input is not an array of numbers, or their total size is too large.
            ServerRefused: the model does not accept these inputs, or has no program.
            ReplicaGone: the replica did not answer within the timeout.
        """
        if not isinstance(inputs, (Mapping, list, tuple)):
            raise UsageError(
                f"inputs is a {type(inputs).__name__}; give a dict of arrays by name, or a list of all in "
                "order [R748]"
            )
        names = list(inputs) if isinstance(inputs, Mapping) else None
        given = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
        arrays = [
            _input(each, number if names is None else names[number]) for number, each in enumerate(given)
        ]
        total = sum(array.nbytes for array in arrays)
        if total > MOST_BYTES:
            raise UsageError(
                f"inputs of {total} bytes were given; {MOST_BYTES} are possible at a time [R748]"
            )
        answer = self._ask(Opcode.PREDICT, {"inputs": names}, arrays)
        own = [np.array(array) for array in answer.arrays]
        return Predicted(put_together(answer.meta["outputs"], own), answer.meta["version"])

    def status(self) -> dict[str, Any]:
        """Return the state of the replica.

        Returns:
            `version` and its `step`; `pinned`, the version that is served regardless of newer ones, or None;
            `lag`, seconds from the training step of the last new version until it was served, None before the
            first; `age`, seconds since the training step; `trouble`, the error that keeps a newer version
            from being served, or ""; `tables` with floats per row; `inputs` with dtype and shape;
            `ids_looked_up`, `ids_found`; `refused` messages by kind.

        Raises:
            ReplicaGone: the replica did not answer within the timeout.
        """
        return self._ask(Opcode.STATUS, {}, []).meta

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> ReplicaClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, operation: Opcode, meta: dict[str, Any], arrays: list[Array]) -> Message:
        try:
            request = self._client.send(0, operation, meta, arrays)
        except zmq.ZMQError:
            raise UsageError("this client was closed; make another ronde.ReplicaClient [R746]") from None
        try:
            (answer,) = self._client.wait([request])
        except PeerLost:
            raise self._gone() from None
        except ServerRefused as error:
            raise self._refused(error) from None
        finally:
            self._client.withdraw(request)
        return answer

    def _gone(self) -> ReplicaGone:
        return ReplicaGone(
            f"no replica has answered at {self.endpoint} for {self._timeout:g} s: is ronde serve running "
            "there, and is this the address of its --binary, not of HTTP? [R747]"
        )

    def _refused(self, error: ServerRefused) -> ServerRefused:
        return ServerRefused(f"the replica at {self.endpoint} refuses: {error.why} [R748]", error.why)


def _check_endpoint(endpoint: str) -> None:
    if not isinstance(endpoint, str) or not endpoint.startswith(("tcp://", "ipc://")):
        raise UsageError(
            "give the address that ronde serve --binary printed (tcp://ADDRESS:PORT or ipc://NAME), not "
            f"{endpoint} [R746]"
        )


def _ids(given: Any) -> tuple[Array, tuple[int, ...]]:
    """Return ids as int64 [n], and their original shape."""
    ids = np.asarray(given)
    if not ids.size:
        ids = ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        raise UsageError(f"ids must be whole numbers, not {ids.dtype.name}; try ids.astype('int64') [R748]")
    if ids.dtype == np.uint64 and ids.max(initial=0) > np.iinfo(np.int64).max:
        raise UsageError("ids must be from -2**63 to 2**63 - 1; hash larger ones [R748]")
    if ids.size > MOST_IDS:
        raise UsageError(f"{ids.size} ids were given; {MOST_IDS} are possible at a time [R748]")
    return np.ascontiguousarray(ids, np.int64).reshape(-1), ids.shape


def _input(given: Any, name: Any) -> Array:
    try:
        array = np.asarray(given)
    except (ValueError, TypeError):
        array = np.empty(0, object)
    sent = travels_as(array)
    if sent is None:
        raise UsageError(
            f"input {name} is not an array of numbers: numpy makes {array.dtype.name} of it [R748]"
        )
    return sent
