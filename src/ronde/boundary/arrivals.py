"""What threads and processes of the script give to its main thread: on every rank that of the main rank.

Each rank has its own, in step with nobody: which of three has a batch ready first, or whether any has, is
another matter on each. So what the script takes out of a queue or a pipe is what the main rank took, and
every rank takes as much out of its own. Where but one thread can give, its values come in one order, and
stay each rank's own.
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

import torch

from ronde.boundary.agreement import Agreement
from ronde.boundary.caller import called_by_script
from ronde.boundary.other_threads import others
from ronde.boundary.patches import Patches
from ronde.boundary.reach import is_users_module
from ronde.comm.as_bytes import as_bytes
from ronde.comm.process_group import Comm

__all__ = ["PATIENCE_S", "Arrivals"]

# Libraries that step environments in processes, for the script and as often on every rank.
_STEPPERS = ("gym.vector.", "gymnasium.vector.", "stable_baselines3.common.vec_env.", "tianshou.env.")
# Whose methods call each other: `get_nowait` calls `get`.
_QUEUES = ("queue", "multiprocessing.queues")
# What is told by its value, or goes by a name anyway.
_PLAIN = (str, bytes, int, float, complex, tuple, type(None), type, types.FunctionType, types.ModuleType)
# How long a rank waits for its own to be what the main rank's is.
PATIENCE_S = 10.0
# How much of its own a rank lays aside that is not what the main one has.
_MOST_ASIDE = 64
_TAKING = "get()"
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
    """

    def __init__(self, comm: Comm, agree: Agreement, in_step: Callable[[], bool]) -> None:
        self._comm = comm
        self._agree = agree
        self._in_step = in_step
        # How many of its own a rank has yet to take.
        self._owed: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Of each queue the thread that gives, or that several do.
        self._givers: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()
        # Of a queue of threads, what has come sooner here; and those in which something else came.
        self._aside: weakref.WeakKeyDictionary[Any, collections.deque[Any]] = weakref.WeakKeyDictionary()
        self._unlike: weakref.WeakSet[Any] = weakref.WeakSet()
        # Queues that the script asks whether there is something: ranks may have different numbers.
        self._polled: weakref.WeakSet[Any] = weakref.WeakSet()

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

    def _is_scripts(self, *through: str) -> bool:
        """Whether the script has called whoever asks, where all ranks are in step."""
        return called_by_script(*through, or_by=_STEPPERS, above=1) and self._in_step()

    def _note_givers(self, patches: Patches) -> None:
        plain = queue.Queue.put
        givers = self._givers

        @functools.wraps(plain)
        def put(target: Any, *args: Any, **kwargs: Any) -> None:
            here = threading.current_thread()
            if givers.setdefault(target, weakref.ref(here))() is not here:
                givers[target] = _several
            plain(target, *args, **kwargs)

        patches.set(queue.Queue, "put", put)

    def _shares(self, source: Any) -> bool:
        """Whether what is taken is the main rank's, as that finds."""
        return bool(self._agree("queue.Queue.get", int(self._has_several(source))))

    def _has_several(self, source: Any) -> bool:
        """Whether more than one thread gives, or may do so."""
        giver, may = self._givers.get(source), list(others())
        if giver is None:
            return len(may) > 1
        if giver() is threading.current_thread():  # all ranks together
            return False
        return giver is _several or len(may) + (giver() not in may) > 1

    def _got(self, plain: _Taking) -> _Taking:
        of_threads = plain is queue.Queue.get

        @functools.wraps(plain)
        def get(source: Any, block: bool = True, timeout: float | None = None) -> Any:
            if not self._is_scripts(*_QUEUES):
                return plain(source, block, timeout)
            waits = block and timeout is None
            if not waits:
                self._polled.add(source)
            elif of_threads and source not in self._polled and not self._shares(source):
                return plain(source)
            take = functools.partial(plain, source, block, timeout)
            within = functools.partial(plain, source, True)
            if of_threads:
                return self._same_of(source, take, within)
            return self._taken(source, take, within, waits)

        return get

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
            if not (kind.endswith(("Queue", "Event")) and self._in_step()):
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
            return _given(outcome if outcome is not _NOTHING else self._own(source, take_within))
        # Alike, it stays this rank's own, with what it shares.
        return _given(outcome if _packed(outcome) == told else _unpacked(told))

    def _same_of(self, source: Any, take: Callable[[], Any], within: Callable[[float | None], Any]) -> Any:
        """As `_taken`, of what threads give: objects of the script, of which a rank has one of its own.

        It looks for the one that is alike, until one has not been found.
        """
        self._comm.mark(_TAKING)
        if self._comm.rank == 0:
            return self._first(take)
        told = self._comm.broadcast_object(None)
        if told is None:  # each rank has its own
            return within(None)
        sent = _unpacked(told)
        if not sent[0]:
            return _given(sent)
        aside = self._aside.setdefault(source, collections.deque())
        for place, each in enumerate(aside):
            if _packed((True, each)) == told:
                del aside[place]
                return each
        patience = 0.0 if source in self._unlike else PATIENCE_S
        while len(aside) < _MOST_ASIDE:
            own = _outcome_of(lambda: within(patience))
            if _packed(own) == told:
                return _given(own)
            if not own[0]:
                break
            aside.append(own[1])
        self._unlike.add(source)
        if aside:
            aside.popleft()
        return _given(sent)

    def _first(self, take: Callable[[], Any]) -> Any:
        """On the main rank: take, and send that."""
        outcome = _outcome_of(take)
        self._comm.broadcast_object(_packed(outcome))
        return _given(outcome)

    def _caught_up(self, source: Any, take_within: Callable[[float | None], Any]) -> Any:
        """The last that this rank takes of its own: as many as the main rank has, as far as they are here."""
        outcome, owed = _NOTHING, self._owed.get(source, 0)
        patience = PATIENCE_S if not owed else 0.0
        owed += 1
        while owed:
            outcome = _outcome_of(lambda: take_within(patience))
            if not outcome[0] and isinstance(outcome[1], queue.Empty):
                outcome = _NOTHING
                break
            owed -= 1
        self._owed[source] = owed
        return outcome

    def _own(self, source: Any, take_within: Callable[[float | None], Any]) -> Any:
        self._owed[source] = self._owed.get(source, 1) - 1
        return _outcome_of(lambda: take_within(None))

    def _asked(
        self, plain: Callable[..., Any], name: str, catch_up: Callable[[Any, float], object] | None = None
    ) -> Callable[..., Any]:
        """The main rank's answer; another rank waits a while for its own to be the same."""

        @functools.wraps(plain)
        def ask(source: Any, *args: Any, **kwargs: Any) -> Any:
            answer = plain(source, *args, **kwargs)
            if not self._is_scripts():
                return answer
            if catch_up is None:
                self._polled.add(source)
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


def _several() -> None:
    """In the place of one thread."""


def _outcome_of(take: Callable[[], Any]) -> Any:
    """Whether something was taken, and that, or the error."""
    try:
        return True, take()
    except Exception as error:
        return False, error


def _given(outcome: Any) -> Any:
    taken, value = outcome
    if taken:
        return value
    raise value


def _packed(outcome: Any) -> bytes | None:
    """None where it cannot be sent: then each rank has its own."""
    written = io.BytesIO()
    try:
        _Pickler(written).dump(outcome)
    except Exception:
        return None
    return written.getvalue()


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
    for module in [each for each in sys.modules.values() if is_users_module(each)]:
        for name, value in list(vars(module).items()):
            if not isinstance(value, _PLAIN):
                yield (module.__name__, name), value


def _unpickled(values: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).view(dtype).reshape(shape).to(device)
