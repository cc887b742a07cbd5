"""A key-value store on parameter servers, with the API of MXNet's KVStore.

`dist_sync`: a push takes effect once all workers have pushed, as the sum of their values. `dist_async`: each
    push takes effect at once. `local`: one process, no server. With an optimizer, servers apply it to the
    pushed value; without one the pushed value replaces the stored one. All workers of `dist_sync` make the
    same calls in the same order.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from ronde.errors import UsageError
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.launch.server_config import SERVERS_KEY, read_token
from ronde.server.array_codec import Array
from ronde.server.dense import array_of, tensor_of
from ronde.server.dense_checks import name_of
from ronde.server.kv_optimizer import ServerOptimizer
from ronde.server.kv_placement import Key, KeyPlacement, by_server, elements_of, key_number, listed, place_of
from ronde.server.local_client import LocalClient
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.wire import Opcode

__all__ = ["KVStore"]

Kind = Literal["local", "dist_sync", "dist_async"]
Value = Any
_RULES = {"dist_sync": ("sync",), "dist_async": ("async", "geo")}
_MOST_PENDING = 64
_TICK_S = 0.01
_SMALL = 16 << 10  # elements


class KVStore:
    """Values by key, shared by all workers.

    Args:
        type: `local`, `dist_sync` or `dist_async`; the latter two need servers that were started for it
            (`ronde run --native --plan ps|async --servers N`, or `ronde server --update sync|async`).
        servers: their endpoints, as `tcp://HOST:PORT`; None: RONDE_SERVERS, which `ronde run` sets.
        token: the run's token in hexadecimal; None: RONDE_SERVER_TOKEN.
        rank, workers: this worker's rank, and the number of workers; None: RANK and WORLD_SIZE.
        bigarray_bound: values of at least so many elements are split over all servers, by rows.
        timeout: seconds for which a server may be unreachable.

    Raises:
        UsageError: an argument is invalid or missing, or servers were started for another type.
        PeerLost: a server is unreachable.
    """

    def __init__(
        self,
        type: Kind = "local",
        *,
        servers: Sequence[str] | None = None,
        token: str | None = None,
        rank: int | None = None,
        workers: int | None = None,
        bigarray_bound: int = 1_000_000,
        timeout: float = 1800.0,
    ) -> None:
        if type not in ("local", *_RULES):
            raise UsageError(f"KVStore({type!r}): choose local, dist_sync or dist_async [R440]")
        self.type: Kind = type
        self._bound = bigarray_bound
        self._places: dict[Key, KeyPlacement] = {}
        self._optimizer: ServerOptimizer | None = None
        self._pending: list[tuple[PendingRequest, Array]] = []
        # Requests of small values that were pushed and not pulled since; their answers hold the new value.
        self._answered: dict[Key, list[tuple[PendingRequest, Array]]] = {}
        self._barriers = 0
        self._client: Client | LocalClient
        if type == "local":
            self.rank, self.num_workers = 0, 1
            self._client = LocalClient()
            return
        self.rank = _number("rank", rank, "RANK")
        self.num_workers = _number("workers", workers, "WORLD_SIZE")
        endpoints = servers if servers is not None else os.environ.get(SERVERS_KEY, "").split(",")
        if not all(endpoints) or not endpoints:
            raise UsageError(
                f"KVStore({type!r}): {SERVERS_KEY} does not name the servers; start the program by `ronde "
                "run --native --servers N`, or give servers=[...] [R441]"
            )
        known = token if token is not None else read_token(os.environ)
        self._client = Client(
            list(endpoints),
            bytes.fromhex(known),
            worker=self.rank,
            workers=self.num_workers,
            incarnation=_incarnation(),
            timeout=timeout,
            run=os.environ.get(RUN_ID_KEY, ""),
        )
        self._check_rule()
        atexit.register(self.close)

    def init(self, key: Key | Sequence[Key], value: Value) -> None:
        """Set the initial values of keys to rank 0's. Collective.

        Args:
            key: an integer or a string, or a list of them.
            value: a tensor of any shape, or a list with one for each key.

        Raises:
            UsageError: a key has a value already; servers do not support a dtype.
        """
        pairs = listed("init", key, value)
        tensors: list[tuple[KeyPlacement, torch.Tensor]] = []
        for each, tensor in pairs:
            if each in self._places:
                raise UsageError(f"KVStore.init({each!r}): this key has a value; push() changes it [R443]")
            place = place_of(each, tensor, self._client.servers, self._bound)
            tensors.append((place, tensor))
        if self.type == "dist_sync" or self.rank == 0:
            self._settle(self._change(Opcode.INIT, tensors, {}))
        if self.type == "dist_async":
            self.barrier()
        self._places.update({place.key: place for place, _ in tensors})

    def push(self, key: Key | Sequence[Key], value: Value) -> None:
        """Push values of keys; returns before servers have them.

        Args:
            value: a tensor with the shape and dtype of `init`, or a list of such, which are summed; for a
                list of keys a list with one (or with a list) for each.

        Raises:
            UsageError: a key has no value yet; shape or dtype differ.
            ServerRefused: a server refused an earlier push.
        """
        summed = self._summed("push", key, value)
        self._collect(most=_MOST_PENDING)
        operation, meta = self._pushed()
        for place, _ in summed:
            self._pending += self._answered.pop(place.key, [])
        if self.type == "dist_sync" and len(summed) == 1 and summed[0][0].numel <= _SMALL:
            # Its value cannot change before this worker's next push, so the answer serves the next pull.
            meta = {**meta, "pull": True}
            self._answered[summed[0][0].key] = self._change(operation, summed, meta, back=True)
        else:
            self._pending += self._change(operation, summed, meta)

    def pull(self, key: Key | Sequence[Key], out: Value = None) -> Value:
        """Return the values of keys, with all pushes of this worker applied.

        Args:
            out: a tensor (or a list of them) for each key, written to; None: new ones are made.

        Returns:
            `out`, or a tensor for a key and a list of tensors for a list of keys.

        Raises:
            UsageError: a key has no value yet; `out` has another shape.
        """
        places = [self._known("pull", each) for each in _keys(key)]
        asked = self._answered.pop(places[0].key, None) if len(places) == 1 else None
        return self._pulled(key, places, self._ask(places) if asked is None else asked, out, "pull")

    def pushpull(self, key: Key | Sequence[Key], value: Value, out: Value = None) -> Value:
        """Push, then pull, in one message each way."""
        summed = self._summed("pushpull", key, value)
        self._collect(most=_MOST_PENDING)
        operation, meta = self._pushed()
        asked = self._change(operation, summed, {**meta, "pull": True}, back=True)
        return self._pulled(key, [place for place, _ in summed], asked, out, "pushpull")

    def row_sparse_pull(self, key: Key, row_ids: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return some rows of a value.

        Args:
            row_ids: int64 [n], in any order, repetitions allowed.
            out: [n, ...], written to; None: a new tensor is made.

        Returns:
            The rows `[n, ...]`, in the order of `row_ids`.

        Raises:
            UsageError: the key has no value yet; a row id is out of range; `out` has another shape.
        """
        place = self._known("row_sparse_pull", key)
        numbers = torch.as_tensor(row_ids, dtype=torch.int64).reshape(-1).cpu()
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < place.rows:
            raise UsageError(
                f"KVStore.row_sparse_pull({key!r}): rows are numbered from 0 to {place.rows - 1} [R443]"
            )
        if out is None:
            out = torch.empty((len(numbers), *place.shape[1:]), dtype=place.dtype)
        elif tuple(out.shape) != (len(numbers), *place.shape[1:]):
            raise UsageError(
                f"KVStore.row_sparse_pull({key!r}): out is {list(out.shape)}, and "
                f"{[len(numbers), *place.shape[1:]]} is needed [R443]"
            )
        asked: list[tuple[torch.Tensor, PendingRequest]] = []
        dim = max(place.numel // max(place.rows, 1), 1)
        for part in place.parts:
            first, last = part.start // dim, part.stop // dim
            chosen = ((numbers >= first) & (numbers < last)).nonzero().view(-1)
            if len(chosen):
                rows = (numbers[chosen] - first).numpy()
                meta = {"keys": [place.number], "dim": dim}
                clock = self._client.sequences[part.server]
                request = self._client.send(part.server, Opcode.PULL_ROWS, meta, [rows], clock=clock)
                asked.append((chosen, request))
        answers = self._client.wait([request for _, request in asked])
        with torch.no_grad():
            for (chosen, _), answer in zip(asked, answers, strict=True):
                came = tensor_of(answer.arrays[0], place.dtype).view(len(chosen), *place.shape[1:])
                out[chosen.to(out.device)] = came.to(out.device)
        self._collect(most=0)
        return out

    def set_optimizer(self, optimizer: Any, **options: Any) -> torch.optim.Optimizer:
        """Set the optimizer that servers apply to pushed gradients. All workers call it.

        Each push sends the current hyper-parameters of the returned optimizer: a learning rate that a
        scheduler or the program sets there applies from the next push on.

        Args:
            optimizer: a class of element-wise optimizers in `torch.optim`, with its `options`; or an instance
                with one parameter group, whose parameters are ignored.

        Returns:
            the optimizer whose first group is sent with pushes.

        Raises:
            UsageError: servers cannot run it.
        """
        self._optimizer = ServerOptimizer(
            optimizer, options, 0 if self._optimizer is None else self._optimizer.number + 1
        )
        return self._optimizer.torch_optimizer

    def barrier(self) -> None:
        """Wait until all workers have called it equally often and their pushes are applied."""
        self._drain()
        if self.type == "local":
            return
        self._barriers += 1
        number = key_number("\0barrier")
        one = np.ones(1, np.int64)
        meta: dict[str, Any] = {"keys": [number], "sizes": [1], "dtype": "int64"}
        self._client.wait([self._client.send(0, Opcode.ADD, meta, [one], changes=True)])
        pause = 0.0005
        while True:
            (answer,) = self._client.wait([self._client.send(0, Opcode.PULL, {"keys": [number]})])
            if int(answer.arrays[0][0]) >= self._barriers * self.num_workers:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def close(self) -> None:
        """Wait for all pushes, then close the connections."""
        atexit.unregister(self.close)
        try:
            self._drain()
        finally:
            self._client.close()

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_rule(self) -> None:
        (answer,) = self._client.wait([self._client.send(0, Opcode.STATUS)])
        rule = answer.meta.get("update")
        if rule not in _RULES[self.type]:
            self._client.close()
            raise UsageError(
                f"KVStore({self.type!r}): the servers were started for update={rule}; start them with "
                f"update={_RULES[self.type][0]} [R442]"
            )

    def _known(self, what: str, key: Key) -> KeyPlacement:
        place = self._places.get(key)
        if place is None:
            raise UsageError(
                f"KVStore.{what}({key!r}): this key has no value yet; call init({key!r}, value) first, "
                "on every worker [R443]"
            )
        return place

    def _summed(
        self, what: str, key: Key | Sequence[Key], value: Value
    ) -> list[tuple[KeyPlacement, torch.Tensor]]:
        """Return each key's place with the sum of its tensors."""
        found: list[tuple[KeyPlacement, torch.Tensor]] = []
        for each, given in listed(what, key, value, sums=True):
            place = self._known(what, each)
            place.check(what, given)
            found.append((place, given))
        return found

    def _pushed(self) -> tuple[Opcode, dict[str, Any]]:
        if self._optimizer is None:
            return Opcode.PUSH, {}
        return Opcode.PUSH_STEP, self._optimizer.told()

    def _change(
        self,
        operation: Opcode,
        tensors: Sequence[tuple[KeyPlacement, torch.Tensor]],
        meta: dict[str, Any],
        *,
        back: bool = False,
    ) -> list[tuple[PendingRequest, Array]]:
        """Send one request per server and dtype, with values concatenated in shared memory."""
        client = self._client
        asked: list[tuple[PendingRequest, Array]] = []
        for (server, dtype), parts in by_server([place for place, _ in tensors]).items():
            room = client.room(sum(part.numel for _, part in parts) * dtype.itemsize)
            target, begin = torch.from_numpy(room).view(dtype), 0
            for number, part in parts:
                flat = tensors[number][1].detach().reshape(-1)
                target[begin : begin + part.numel].copy_(flat[part.start : part.stop])
                begin += part.numel
            told: dict[str, Any] = {
                "keys": [tensors[number][0].number for number, _ in parts],
                "sizes": [part.numel for _, part in parts],
                "dtype": name_of(dtype),
                **meta,
            }
            if back:  # the server has read the pushed values before it answers
                told |= client.into(room)
            asked.append((client.send(server, operation, told, [array_of(target)], changes=True), room))
        return asked

    def _ask(self, places: Sequence[KeyPlacement]) -> list[tuple[PendingRequest, Array]]:
        client = self._client
        asked: list[tuple[PendingRequest, Array]] = []
        for (server, dtype), parts in by_server(places).items():
            room = client.room(sum(part.numel for _, part in parts) * dtype.itemsize)
            meta = {"keys": [places[number].number for number, _ in parts], **client.into(room)}
            clock = client.sequences[server]
            asked.append((client.send(server, Opcode.PULL, meta, clock=clock), room))
        return asked

    @torch.no_grad()
    def _pulled(
        self,
        key: Key | Sequence[Key],
        places: Sequence[KeyPlacement],
        asked: Sequence[tuple[PendingRequest, Array]],
        out: Value,
        what: str,
    ) -> Value:
        """Write the servers' answers to `out`, or to new tensors."""
        many = not isinstance(key, (int, str))
        if out is None:
            made = [[torch.empty(place.shape, dtype=place.dtype)] for place in places]
        else:
            given = out if many else [out]
            made = [list(each) if isinstance(each, (list, tuple)) else [each] for each in given]
            for place, targets in zip(places, made, strict=True):
                for target in targets:
                    place.check(what, target)
        answers = self._client.wait([request for request, _ in asked])
        grouped = by_server(places)
        for ((_, dtype), parts), answer in zip(grouped.items(), answers, strict=True):
            raw = torch.from_numpy(answer.arrays[0].reshape(-1))
            came, begin = (raw if raw.dtype == dtype else raw.view(dtype)), 0
            for number, part in parts:
                for target in made[number]:
                    elements_of(target, part).copy_(
                        came[begin : begin + part.numel].view(part.shape_in(target))
                    )
                begin += part.numel
        for _, room in asked:
            self._client.give_back(room)
        self._collect(most=0)  # servers answer in order, so these do not wait
        if out is not None:
            return out
        return [targets[0] for targets in made] if many else made[0][0]

    def _drain(self) -> None:
        for asked in self._answered.values():
            self._pending += asked
        self._answered.clear()
        self._collect(most=0)

    def _collect(self, *, most: int) -> None:
        """Wait for the oldest pushes until at most `most` are pending."""
        while len(self._answered) > _MOST_PENDING:
            self._pending += self._answered.pop(next(iter(self._answered)))
        if len(self._pending) > most:
            oldest = self._pending[: len(self._pending) - most]
            del self._pending[: len(oldest)]
            self._settle(oldest)

    def _settle(self, asked: Sequence[tuple[PendingRequest, Array]]) -> None:
        try:
            self._client.wait([request for request, _ in asked])
        finally:
            for request, room in asked:
                if request.answer is not None:
                    self._client.give_back(room)


def _keys(key: Key | Sequence[Key]) -> list[Key]:
    return [key] if isinstance(key, (int, str)) else list(key)


def _incarnation() -> int:
    """Return a number that is larger for a worker's later stores.

    Stores of one worker number their changes from 1, so servers accept only the latest store.
    """
    time.sleep(_TICK_S)  # makes it unique
    return int(time.time() / _TICK_S) % 2**32


def _number(name: str, given: int | None, variable: str) -> int:
    found = given if given is not None else os.environ.get(variable, "")
    try:
        return int(found)
    except ValueError:
        raise UsageError(
            f"KVStore: {variable} is {found!r}, which is not a number; give {name}=, or start the program by "
            "`ronde run --native --servers N` [R441]"
        ) from None
