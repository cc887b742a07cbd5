"""Messages between workers and servers: a fixed header, JSON, then arrays.

Nothing from the wire is unpickled. Frame 0 begins, little-endian, with operation, worker, incarnation,
sequence, clock and request; then follows JSON with the meta and the shape and dtype of each array. The other
frames hold the bytes of arrays that are not in shared memory. Frames travel sealed.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ronde.server.array_codec import Array, bytes_of, nbytes_of
from ronde.server.transport.envelope import WireError

__all__ = ["Arena", "Limits", "Message", "Opcode", "WireError", "decode", "encode"]

# Operation, worker, incarnation, sequence, clock, request.
_HEADER = struct.Struct("<B3xIIQQQ")
_DTYPES = {
    name: np.dtype(name)
    for name in ("uint8", "int8", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64")
}


class Opcode(enum.IntEnum):
    """The operation of a request, or the outcome in an answer."""

    DONE = 0
    REFUSED = 1
    HELLO = 2
    STATUS = 3
    LEAVE = 4
    STOP = 5
    MAKE_TABLE = 10
    LOOK_UP = 11
    UPDATE = 12
    COUNT = 13
    ROWS = 14
    PUT_ROWS = 15
    CHANGES = 16
    EMBEDDINGS = 17
    ADD_GRADIENTS = 20
    SCALE_GRADIENTS = 21
    GRADIENTS = 22
    STEP = 23
    OPTIMIZER_STATE = 24
    INIT = 30
    PUSH = 31
    PULL = 32
    ADD = 33
    PUSH_STEP = 34
    PULL_ROWS = 35
    PREDICT = 40


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A request, or its answer.

    Attributes:
        operation: the requested operation, or DONE or REFUSED.
        meta: JSON-serializable arguments.
        arrays: contiguous arrays of dtypes that the wire supports; copy them to keep them.
        worker: the sender's rank.
        incarnation: number of restarts of the sender.
        sequence: number of a worker's change; 0 for reads. In the answer to a read: the worker's last applied
            change.
        clock: number of steps of the sender; for a read of a server, the change that the answer must contain.
        request: id by which the sender finds the answer.
    """

    operation: Opcode
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)
    arrays: Sequence[Array] = ()
    worker: int = 0
    incarnation: int = 0
    sequence: int = 0
    clock: int = 0
    request: int = 0

    def answer(self, meta: dict[str, Any] | None = None, arrays: Sequence[Array] = ()) -> Message:
        """Make the answer to this request."""
        return Message(Opcode.DONE, meta or {}, arrays, request=self.request)

    def refuse(self, why: str, kind: str = "request") -> Message:
        """Make a refusal of this request."""
        return Message(Opcode.REFUSED, {"why": why, "kind": kind}, request=self.request)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits of a message.

    Attributes:
        nbytes: bytes of all frames together, and of each array.
        meta_bytes: bytes of the JSON object.
        arrays: number of arrays.
    """

    nbytes: int = 4 << 30
    meta_bytes: int = 8 << 20
    arrays: int = 4096


_LIMITS = Limits()


class Arena(Protocol):
    """Shared memory of both ends of a connection."""

    def place(self, array: Array) -> int | None:
        """Return an array's place in the memory; None if it lies elsewhere."""
        ...

    def view(self, place: int, nbytes: int) -> memoryview:
        """Return the bytes at a place; raises `WireError` if they do not exist."""
        ...


class NoArena:
    """An arena for two ends without shared memory."""

    def place(self, array: Array) -> int | None:
        return None

    def view(self, place: int, nbytes: int) -> memoryview:
        raise WireError("arena", "an array refers to shared memory, and this connection has none [R429]")


_NO_ARENA = NoArena()


def encode(message: Message, arena: Arena | None = None, limits: Limits | None = None) -> list[Any]:
    """Encode a message as frames. Arrays are not copied, and must not change before they are sealed.

    Raises:
        WireError: the message exceeds the limits.
    """
    places = [None if arena is None else arena.place(array) for array in message.arrays]
    described = [
        [array.dtype.name, list(array.shape)]
        if place is None
        else [array.dtype.name, list(array.shape), place]
        for array, place in zip(message.arrays, places, strict=True)
    ]
    meta = json.dumps([message.meta, described], separators=(",", ":")).encode()
    frames = [bytes_of(array) for array, place in zip(message.arrays, places, strict=True) if place is None]
    _check_size(_HEADER.size + len(meta), frames, len(described), limits or _LIMITS)
    head = _HEADER.pack(
        message.operation, message.worker, message.incarnation, message.sequence, message.clock,
        message.request,
    )  # fmt: skip
    return [head + meta, *frames]


def decode(frames: Sequence[Any], limits: Limits | None = None, arena: Arena | None = None) -> Message:
    """Decode frames to a message; its arrays are views of the frames.

    Raises:
        WireError: the frames are malformed or too large.
    """
    limits = limits or _LIMITS
    views = [memoryview(frame).cast("B") for frame in frames]
    if not views or views[0].nbytes < _HEADER.size:
        raise WireError(
            "truncated", f"the first of {len(views)} frames has less than {_HEADER.size} bytes [R428]"
        )
    operation, worker, incarnation, sequence, clock, request = _HEADER.unpack_from(views[0])
    _check_size(views[0].nbytes, views[1:], len(views) - 1, limits)
    try:
        known = Opcode(operation)
    except ValueError:
        raise WireError("operation", f"there is no operation {operation} [R428]") from None
    meta, arrays = _read(views[0][_HEADER.size :], views[1:], _NO_ARENA if arena is None else arena, limits)
    return Message(known, meta, arrays, worker, incarnation, sequence, clock, request)


def _read(
    meta: memoryview, frames: Sequence[memoryview], arena: Arena, limits: Limits
) -> tuple[dict[str, Any], list[Array]]:
    try:
        told, described = json.loads(bytes(meta))
    except (ValueError, TypeError, RecursionError):
        raise WireError(
            "meta", "the header is not followed by a JSON list of an object and arrays [R428]"
        ) from None
    if not isinstance(told, dict) or not isinstance(described, list) or len(described) > limits.arrays:
        raise WireError("meta", "the header is not followed by a JSON list of an object and arrays [R428]")
    left = list(frames)
    arrays = [_array(each, left, arena, limits) for each in described]
    if left:
        raise WireError("arrays", f"{len(left)} frames belong to no array [R428]")
    return told, arrays


def _array(described: Any, frames: list[memoryview], arena: Arena, limits: Limits) -> Array:
    match described:
        case [str(name), list(shape)]:
            place = None
        case [str(name), list(shape), int(place)]:
            pass
        case _:
            raise WireError("arrays", "the description of an array must be dtype and shape [R428]")
    dtype = _DTYPES.get(name)
    if (
        dtype is None
        or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
        or len(shape) > 8
    ):
        raise WireError(
            "arrays", f"there is no array of dtype {name[:32]} and shape {str(shape)[:64]} [R428]"
        )
    nbytes = nbytes_of(dtype, shape)
    if nbytes > limits.nbytes:
        raise WireError("oversized", f"an array of {nbytes} bytes is too large [R428]")
    if place is not None:
        content = arena.view(place, nbytes)
    elif frames:
        content = frames.pop(0)
    else:
        raise WireError("arrays", "the frame of a described array is missing [R428]")
    if content.nbytes != nbytes:
        raise WireError("arrays", f"an array of {nbytes} bytes came in {content.nbytes} [R428]")
    return np.frombuffer(content, dtype).reshape(shape)


def _check_size(first: int, frames: Sequence[memoryview], arrays: int, limits: Limits) -> None:
    total = first + sum(frame.nbytes for frame in frames)
    if total > limits.nbytes or first - _HEADER.size > limits.meta_bytes or arrays > limits.arrays:
        raise WireError(
            "oversized",
            f"a message of {total} bytes with {arrays} arrays is too large; use more servers, which make "
            "messages smaller [R428]",
        )
