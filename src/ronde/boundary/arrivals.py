"""What threads and processes of the script give to its main thread: on every rank that of the main rank.

Each rank has its own, in step with nobody: which of three has a batch ready first, or whether any has, is
another matter on each. So what the script takes out of a queue or a pipe is what the main rank took, and
every rank takes as much out of its own. Where but one thread can give, its values come in one order, and
stay each rank's own.
"""

from __future__ import annotations

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
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.boundary.agreement import Agreement
from ronde.boundary.caller import called_by_script
from ronde.boundary.other_threads import others
from ronde.boundary.patches import Patches
from ronde.comm.process_group import Comm

__all__ = ["Arrivals"]

# Libraries that step environments in processes, for the script and as often on every rank.
_STEPPERS = ("gym.vector.", "gymnasium.vector.", "stable_baselines3.common.vec_env.", "tianshou.env.")
# Whose methods call each other: `get_nowait` calls `get`.
_QUEUES = ("queue", "multiprocessing.queues")

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

    def install(self, patches: Patches) -> None:
        self._note_givers(patches)
        for owner in (queue.Queue, multiprocessing.queues.Queue):
            patches.set(owner, "get", self._got(owner.get))
        for owner, name in (
            (multiprocessing.queues.SimpleQueue, "get"),
            (multiprocessing.connection._ConnectionBase, "recv"),
        ):
            patches.set(owner, name, self._received(getattr(owner, name), name))
        patches.set(multiprocessing.managers.BaseProxy, "_callmethod", self._managed())
        for owner, name in (
            (queue.Queue, "empty"),
            (queue.Queue, "full"),
            (queue.Queue, "qsize"),
            (multiprocessing.queues.Queue, "empty"),
            (multiprocessing.queues.Queue, "full"),
            (multiprocessing.queues.Queue, "qsize"),
            (multiprocessing.queues.SimpleQueue, "empty"),
            (multiprocessing.connection._ConnectionBase, "poll"),
            (multiprocessing.pool.ApplyResult, "ready"),
            (multiprocessing.process.BaseProcess, "is_alive"),
            (multiprocessing.synchronize.Event, "is_set"),
            (multiprocessing.synchronize.Event, "wait"),
            (threading.Event, "is_set"),
            (threading.Event, "wait"),
            (threading.Thread, "is_alive"),
        ):
            patches.set(owner, name, self._asked(getattr(owner, name), name))
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

    def _has_several(self, source: Any) -> bool:
        """Whether more than one thread gives, or may do so."""
        giver, may = self._givers.get(source), list(others())
        if giver is None:
            return len(may) > 1
        return giver is _several or len(may) + (giver() not in may) > 1

    def _got(self, plain: _Taking) -> _Taking:
        of_threads = plain is queue.Queue.get

        @functools.wraps(plain)
        def get(source: Any, block: bool = True, timeout: float | None = None) -> Any:
            if not self._is_scripts("queue" if of_threads else "multiprocessing.queues"):
                return plain(source, block, timeout)
            patient = block and timeout is None
            if of_threads and patient and not self._agree("queue.Queue.get", int(self._has_several(source))):
                return plain(source)
            if patient:
                return self._shared("get", lambda: plain(source))
            return self._tried(source, plain, block, timeout)

        return get

    def _received(self, plain: _Taking, name: str) -> _Taking:
        @functools.wraps(plain)
        def receive(source: Any) -> Any:
            return self._shared(name, lambda: plain(source)) if self._is_scripts() else plain(source)

        return receive

    def _managed(self) -> _Taking:
        """A queue that a manager's process holds."""
        plain: Any = multiprocessing.managers.BaseProxy._callmethod

        @functools.wraps(plain)
        def call(proxy: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if name in ("get", "get_nowait") and proxy._token.typeid.endswith("Queue") and self._in_step():
                return self._shared(name, lambda: plain(proxy, name, *args, **kwargs))
            return plain(proxy, name, *args, **kwargs)

        return call

    def _asked(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(plain)
        def ask(source: Any, *args: Any, **kwargs: Any) -> Any:
            answer = plain(source, *args, **kwargs)
            if not self._is_scripts():
                return answer
            return type(answer)(self._agree(name, int(answer)))

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

    def _shared(self, name: str, take: Callable[[], Any]) -> Any:
        """What the main rank takes, when this rank has taken one as well."""
        outcome = _outcome_of(take)
        return self._unless_alike(name, outcome)

    def _tried(self, source: Any, plain: _Taking, block: bool, timeout: float | None) -> Any:
        """As `_shared`, where a rank does not wait until there is something."""
        main = self._comm.rank == 0
        outcome = _outcome_of(lambda: plain(source, block, timeout)) if main else _NOTHING
        told = self._comm.broadcast_object(_packed(outcome) if main else None)
        if main:
            return _given(outcome)
        failure = told is not None and not pickle.loads(told)[0]
        if not failure:
            outcome = self._catch_up(source, plain, patient=told is None)
        return _given(outcome if told is None or _packed(outcome) == told else pickle.loads(told))

    def _catch_up(self, source: Any, plain: _Taking, *, patient: bool) -> Any:
        """Take out what the main rank has, as far as it has come here."""
        outcome, owed = _NOTHING, self._owed.get(source, 0) + 1
        while owed:
            outcome = _outcome_of(lambda: plain(source, patient, None))
            if not outcome[0]:
                break
            owed -= 1
        self._owed[source] = owed
        return outcome

    def _unless_alike(self, name: str, outcome: Any) -> Any:
        self._comm.mark(name)
        packed = _packed(outcome)
        told = self._comm.broadcast_object(packed if self._comm.rank == 0 else None)
        # Alike, it stays this rank's own, with what it shares.
        return _given(outcome if told is None or told == packed else pickle.loads(told))


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


class _Pickler(pickle.Pickler):
    """The same bytes for the same tensors; torch's name the place in which a tensor lies."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.layout is not torch.strided or obj.requires_grad:
            return NotImplemented
        values = obj.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _unpickled, (values, obj.dtype, tuple(obj.shape), obj.device)


def _unpickled(values: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).view(dtype).reshape(shape).to(device)
