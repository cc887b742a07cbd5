"""What threads and processes of the script give to its main thread: on every rank that of the main rank.

Each rank has its own, in step with nobody: which of three has a batch ready first, or whether any has, is
another matter on each. So what the script takes out of a queue or a pipe is what the main rank took, and
every rank takes as much out of its own. Where threads give in one order, values stay each rank's own.
"""

from __future__ import annotations

import collections
import functools
import io
import multiprocessing.connection
import multiprocessing.managers
import multiprocessing.pool
import multiprocessing.process
import multiprocessing.queues
import multiprocessing.synchronize
import pickle
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch

from ronde.boundary.caller import called_by_script
from ronde.boundary.circumstances.agreement import Agreement
from ronde.boundary.circumstances.givers import Givers
from ronde.boundary.circumstances.outcomes import given, outcome_of, packed
from ronde.boundary.patches import Patches
from ronde.boundary.reach import is_users_module
from ronde.comm.as_bytes import as_bytes
from ronde.comm.process_group import Comm

__all__ = ["PATIENCE_S", "Arrivals"]

# Libraries that step environments in processes, for the script and as often on every rank.
_STEPPERS = ("gym.vector.", "gymnasium.vector.", "stable_baselines3.common.vec_env.", "tianshou.env.")
# Whose methods call each other: `get_nowait` calls `get`.
_QUEUES = ("queue", "multiprocessing.queues")
# What is told by its value, or goes by a name anyway. A buffer that is filled again has its name still.
_PLAIN = (
    *(str, bytes, int, float, complex, tuple, type(None), type, types.FunctionType, types.ModuleType),
    *(list, dict, set, bytearray, numpy.ndarray, torch.Tensor),
)
# How long a rank waits for its own to be what the main rank's is.
PATIENCE_S = 10.0
# How much of its own a rank lays aside that is not what the main one has.
_MOST_ASIDE = 64
_TAKING = "get()"
# What a thread that gives is asked, and goes by itself, to come to its end: what it gives is the same.
_ABOUT_THE_END = ("is_alive", "is_set", "wait")
# What is asked, and how a rank comes to where the main one is.
_FLAGS: tuple[tuple[Any, str, Callable[[Any, float], object]], ...] = (
    (multiprocessing.connection._ConnectionBase, "poll", multiprocessing.connection._ConnectionBase.poll),
    (multiprocessing.pool.ApplyResult, "ready", multiprocessing.pool.ApplyResult.wait),
    (multiprocessing.process.BaseProcess, "is_alive", multiprocessing.process.BaseProcess.join),
    (multiprocessing.synchronize.Event, "is_set", multiprocessing.synchronize.Event.wait),
    (multiprocessing.synchronize.Event, "wait", multiprocessing.synchronize.Event.wait),
    (threading.Event, "is_set", threading.Event.wait),
    (threading.Event, "wait", threading.Event.wait),
    (threading.Thread, "is_alive", threading.Thread.join),
)

_Taking = Callable[..., Any]


class Arrivals:
    """Replaces the methods by which a script takes, and by which it asks whether there is something to take.

    Args:
        in_step: whether the code that runs now is run by all ranks together.
        givers: notes of who gives through queues.
    """

    def __init__(self, comm: Comm, agree: Agreement, in_step: Callable[[], bool], givers: Givers) -> None:
        self._comm = comm
        self._agree = agree
        self._in_step = in_step
        self._givers = givers
        # How many of its own a rank has yet to take.
        self._owed: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Of a queue of threads, what has come sooner here, as it is sent and itself; and those in which
        # something else came.
        self._aside: weakref.WeakKeyDictionary[Any, collections.deque[Any]] = weakref.WeakKeyDictionary()
        self._unlike: weakref.WeakSet[Any] = weakref.WeakSet()
        # Queues of which ranks may have different numbers (the script asks whether there is something), or
        # in another order.
        self._shared: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self, patches: Patches) -> None:
        self._note_givers(patches)
        for owner in (queue.Queue, multiprocessing.queues.Queue):
            patches.set(owner, "get", self._got(owner.get))
            for name in ("empty", "full", "qsize"):
                patches.set(owner, name, self._asked(getattr(owner, name), name))
        simple, connection = multiprocessing.queues.SimpleQueue, multiprocessing.connection._ConnectionBase
        patches.set(simple, "get", self._received(simple.get, lambda source: source._reader))
        patches.set(connection, "recv", self._received(connection.recv, lambda source: source))
        patches.set(multiprocessing.managers.BaseProxy, "_callmethod", self._managed())
        patches.set(simple, "empty", self._asked(simple.empty, "empty"))
        for owner, name, catch_up in _FLAGS:
            patches.set(owner, name, self._asked(getattr(owner, name), name, catch_up))
        patches.set(multiprocessing.connection, "wait", self._awaited(multiprocessing.connection.wait))

    def _is_scripts(self, *through: str, in_no_order: bool = True) -> bool:
        """Whether the script has called whoever asks, where all ranks are in step.

        Args:
            in_no_order: whether a thread that asks goes by what is another matter on each rank.
        """
        if not called_by_script(*through, or_by=_STEPPERS, above=1):
            return False
        in_step = self._in_step()
        if in_no_order and not in_step:
            self._givers.in_no_order()
        return in_step

    def _note_givers(self, patches: Patches) -> None:
        plain, givers = queue.Queue.put, self._givers

        @functools.wraps(plain)
        def put(target: Any, item: Any, block: bool = True, timeout: float | None = None) -> None:
            may_drop = target.maxsize > 0 and not (block and timeout is None)
            if may_drop and called_by_script(*_QUEUES):
                givers.in_no_order()
            givers.gives(target)
            plain(target, item, block, timeout)

        patches.set(queue.Queue, "put", put)

    def _got(self, plain: _Taking) -> _Taking:
        of_threads = plain is queue.Queue.get

        @functools.wraps(plain)
        def get(source: Any, block: bool = True, timeout: float | None = None) -> Any:
            waits = block and timeout is None
            take = functools.partial(plain, source, block, timeout)
            if not self._is_scripts(*_QUEUES, in_no_order=not (of_threads and waits)):
                return self._got_by_thread(source, take) if of_threads else take()
            within = functools.partial(plain, source, True)
            if not waits:
                self._shared.add(source)
            if of_threads:
                return self._given_by_threads(source, take, within)
            return self._taken(source, take, within, waits)

        return get

    def _got_by_thread(self, source: Any, take: Callable[[], Any]) -> Any:
        """Where all ranks are not in step."""
        if threading.current_thread() is threading.main_thread():
            return take()
        self._givers.takes(source)
        value = take()
        self._givers.has_taken(source)
        return value

    def _given_by_threads(
        self, source: Any, take: Callable[[], Any], within: Callable[[float | None], Any]
    ) -> Any:
        """The main rank takes first: who gives is known by then."""
        self._comm.mark(_TAKING)
        if source in self._shared:
            return self._first(take) if self._comm.rank == 0 else self._same_of(source, within)
        outcome = outcome_of(take) if self._comm.rank == 0 else None
        if self._agree("queue.Queue.get", int(outcome is not None and self._givers.mix(source))):
            self._shared.add(source)
            return self._sent(outcome) if outcome is not None else self._same_of(source, within)
        return given(outcome) if outcome is not None else take()

    def _received(self, plain: _Taking, end: Callable[[Any], Any]) -> _Taking:
        """Of a pipe, whose `end` can be asked whether there is something."""
        poll = multiprocessing.connection._ConnectionBase.poll

        @functools.wraps(plain)
        def receive(source: Any) -> Any:
            if not self._is_scripts():
                return plain(source)

            def within(patience: float | None) -> Any:
                if patience is not None and not poll(end(source), patience):
                    raise queue.Empty
                return plain(source)

            return self._taken(source, lambda: plain(source), within, True)

        return receive

    def _managed(self) -> _Taking:
        """A queue that a manager's process holds."""
        plain: Any = multiprocessing.managers.BaseProxy._callmethod

        @functools.wraps(plain)
        def call(proxy: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            kind = proxy._token.typeid
            if not kind.endswith(("Queue", "Event")):
                return plain(proxy, name, *args, **kwargs)
            if not self._in_step():
                if kind.endswith("Queue") and name not in ("put", "put_nowait"):
                    self._givers.in_no_order()
                return plain(proxy, name, *args, **kwargs)
            if name in ("empty", "full", "qsize", "is_set"):
                answer = plain(proxy, name, *args, **kwargs)
                return type(answer)(self._agree(name, int(answer)))
            if name not in ("get", "get_nowait"):
                return plain(proxy, name, *args, **kwargs)
            return self._taken(
                proxy,
                lambda: plain(proxy, name, *args, **kwargs),
                lambda patience: plain(proxy, "get", (True, patience)),
                False,
            )

        return call

    def _taken(
        self, source: Any, take: Callable[[], Any], take_within: Callable[[float | None], Any], waits: bool
    ) -> Any:
        """What the main rank takes.

        Another rank takes one of its own as well, if there is any within some time, and else later: where
        ranks are given different numbers of things nobody may wait for ever.

        Args:
            take: as the script does it.
            take_within: waits for so many seconds; None: until there is something.
            waits: until there is something, so other ranks have one too before long.
        """
        self._comm.mark(_TAKING)
        if self._comm.rank == 0:
            return self._first(take)
        outcome = self._caught_up(source, take_within) if waits else _NOTHING
        told = self._comm.broadcast_object(None)
        if not waits and (told is None or _unpacked(told)[0]):
            outcome = self._caught_up(source, take_within)
        if told is None:  # it stays each rank's own
            return given(outcome if outcome is not _NOTHING else self._own(source, take_within))
        # Alike, it stays this rank's own, with what it shares.
        return given(outcome if _packed(outcome) == told else _unpacked(told))

    def _same_of(self, source: Any, within: Callable[[float | None], Any]) -> Any:
        """As `_taken`, of what threads give: objects of the script, of which a rank has one of its own.

        It looks for the one that is alike, until one has not been found.
        """
        told = self._comm.broadcast_object(None)
        if told is None:  # each rank has its own
            return within(None)
        sent = _unpacked(told)
        if not sent[0]:
            return given(sent)
        aside = self._aside.setdefault(source, collections.deque())
        for place, (own, each) in enumerate(aside):
            if own == told:
                del aside[place]
                return each
        patience = 0.0 if source in self._unlike else PATIENCE_S
        while len(aside) < _MOST_ASIDE:
            own = outcome_of(lambda: within(patience))
            mine = _packed(own)
            if mine == told:
                return given(own)
            if not own[0]:
                break
            aside.append((mine, own[1]))
        self._unlike.add(source)
        if aside:
            aside.popleft()
        return given(sent)

    def _first(self, take: Callable[[], Any]) -> Any:
        """On the main rank: take, and send that."""
        return self._sent(outcome_of(take))

    def _sent(self, outcome: Any) -> Any:
        self._comm.broadcast_object(_packed(outcome))
        return given(outcome)

    def _caught_up(self, source: Any, take_within: Callable[[float | None], Any]) -> Any:
        """The last that this rank takes of its own: as many as the main rank has, as far as they are here."""
        outcome, owed = _NOTHING, self._owed.get(source, 0)
        patience = PATIENCE_S if not owed else 0.0
        owed += 1
        while owed:
            outcome = outcome_of(lambda: take_within(patience))
            if not outcome[0] and isinstance(outcome[1], queue.Empty):
                outcome = _NOTHING
                break
            owed -= 1
        self._owed[source] = owed
        return outcome

    def _own(self, source: Any, take_within: Callable[[float | None], Any]) -> Any:
        self._owed[source] = self._owed.get(source, 1) - 1
        return outcome_of(lambda: take_within(None))

    def _asked(
        self, plain: Callable[..., Any], name: str, catch_up: Callable[[Any, float], object] | None = None
    ) -> Callable[..., Any]:
        """The main rank's answer; another rank waits a while for its own to be the same."""

        @functools.wraps(plain)
        def ask(source: Any, *args: Any, **kwargs: Any) -> Any:
            answer = plain(source, *args, **kwargs)
            if not self._is_scripts(in_no_order=name not in _ABOUT_THE_END):
                return answer
            if catch_up is None:
                self._shared.add(source)
            told = self._agree(name, int(answer))
            if catch_up is not None and told != answer:
                catch_up(source, PATIENCE_S)
            return type(answer)(told)

        return ask

    def _awaited(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def wait(object_list: Sequence[Any], timeout: float | None = None) -> list[Any]:
            objects = list(object_list)
            ready = plain(objects, timeout)
            if not self._is_scripts():
                return ready
            places = [place for place, each in enumerate(objects) if any(each is one for one in ready)]
            return [objects[place] for place in self._comm.broadcast_object(places)]

        return wait


_NOTHING = (False, queue.Empty())


def _packed(outcome: Any) -> bytes | None:
    return packed(outcome, _Pickler)


def _unpacked(told: bytes) -> Any:
    return _Unpickler(io.BytesIO(told)).load()


class _Pickler(pickle.Pickler):
    """The same bytes for the same tensors, of which torch's own name the place where a tensor lies.

    What has a name in the script (a sentinel that is told by `is`) goes by it.

    Raises:
        pickle.PicklingError: where a copy would not do: of a module, or of what has a graph.
    """

    def __init__(self, written: io.BytesIO) -> None:
        super().__init__(written)
        self._names = {id(value): name for name, value in _named()}

    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.nn.Module) or (isinstance(obj, torch.Tensor) and obj.requires_grad):
            raise pickle.PicklingError
        if type(obj) is not torch.Tensor or obj.layout is not torch.strided:
            return NotImplemented
        values = as_bytes(obj.cpu().contiguous()).numpy()
        return _unpickled, (values, obj.dtype, tuple(obj.shape), obj.device)


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: tuple[str, str]) -> Any:
        module, name = pid
        return getattr(sys.modules[module], name)


def _named() -> Iterator[tuple[tuple[str, str], Any]]:
    """Objects by the module and the name that they have in the script."""
    loaded = list(sys.modules)
    for module in _users_modules(len(loaded), loaded[-1]):
        for name, value in list(vars(module).items()):
            if not isinstance(value, _PLAIN):
                yield (module.__name__, name), value


@functools.lru_cache(maxsize=1)
def _users_modules(_count: int, _newest: str) -> list[types.ModuleType]:
    """The script's own among all modules, of which there are thousands: looked for when one has come."""
    return [module for module in list(sys.modules.values()) if is_users_module(module)]


def _unpickled(values: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).view(dtype).reshape(shape).to(device)
