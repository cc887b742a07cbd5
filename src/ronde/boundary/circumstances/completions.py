"""Results of threads and processes as they come: in the main rank's order, where the script asks for any.

The values stay each rank's own: they are those of the same calls. Futures also hash by the order in which the
script made them, so that sets of them are gone through alike.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import inspect
import itertools
import multiprocessing
import multiprocessing.pool
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ronde.boundary.caller import called_by_script
from ronde.boundary.circumstances.agreement import Agreement
from ronde.boundary.circumstances.arrivals import PATIENCE_S
from ronde.boundary.circumstances.givers import Givers
from ronde.boundary.patches import Patches
from ronde.comm.process_group import Comm

__all__ = ["Completions"]

_END, _LATE = -1, -2
_ALL = concurrent.futures.ALL_COMPLETED


class Completions:
    """Replaces what yields results as they come.

    Args:
        in_step: whether the code that runs now is run by all ranks together.
        givers: notes of who gives through queues.
    """

    def __init__(self, comm: Comm, agree: Agreement, in_step: Callable[[], bool], givers: Givers) -> None:
        self._comm = comm
        self._agree = agree
        self._in_step = in_step
        self._givers = givers
        self._numbers = itertools.count(1)

    def install(self, patches: Patches) -> None:
        self._number_futures(patches)
        futures = concurrent.futures
        as_completed, wait = self._as_completed(futures.as_completed), self._waited(futures.wait)
        for owner in (futures, futures._base):
            patches.set(owner, "as_completed", as_completed)
            patches.set(owner, "wait", wait)
        patches.set(futures.Future, "done", self._done(futures.Future.done))
        patches.set(futures.Future, "add_done_callback", self._called(futures.Future.add_done_callback))
        results: Any = multiprocessing.pool.IMapUnorderedIterator
        self._remember_order(patches, results)
        following = self._next(results.next)
        patches.set(results, "next", following)
        patches.set(results, "__next__", following)

    def _is_scripts(self) -> bool:
        """Whether the script has called whoever asks, where all ranks are in step."""
        if not called_by_script(above=1):
            return False
        in_step = self._in_step()
        if not in_step:
            self._givers.in_no_order()
        return in_step

    def _number_futures(self, patches: Patches) -> None:
        future: Any = concurrent.futures.Future
        plain, numbers = future.__init__, self._numbers

        def init(made: Any) -> None:
            plain(made)
            if threading.current_thread() is threading.main_thread():
                made._ronde_number = next(numbers)

        def hashed(asked: Any) -> int:
            return getattr(asked, "_ronde_number", None) or object.__hash__(asked)

        patches.set(future, "__init__", init)
        patches.set(future, "__hash__", hashed)

    def _as_completed(self, plain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @functools.wraps(plain)
        def as_completed(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
            if not self._is_scripts():
                return plain(fs, timeout)
            futures = list(dict.fromkeys(fs))
            return self._in_order(futures, plain(futures, timeout))

        return as_completed

    def _in_order(self, futures: Sequence[Any], completed: Iterator[Any]) -> Iterator[Any]:
        places = {future: place for place, future in enumerate(futures)}
        plain_wait = inspect.unwrap(concurrent.futures.wait)
        while True:
            place, error = _END, None
            if self._comm.rank == 0:
                try:
                    place = places[next(completed)]
                except StopIteration:
                    pass
                except concurrent.futures.TimeoutError as late:
                    place, error = _LATE, late
            place = self._agree("the next future", place)
            if place == _END:
                return
            if place == _LATE:
                raise error or concurrent.futures.TimeoutError
            plain_wait([futures[place]])
            yield futures[place]

    def _waited(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def wait(fs: Iterable[Any], timeout: Any = None, return_when: str = _ALL) -> Any:
            waits_for_all = timeout is None and return_when == _ALL
            if waits_for_all or not self._is_scripts():
                return plain(fs, timeout, return_when)
            futures = list(dict.fromkeys(fs))
            places: list[int] = []
            if self._comm.rank == 0:
                ready = plain(futures, timeout, return_when).done
                places = [place for place, future in enumerate(futures) if future in ready]
            places = self._comm.broadcast_object(places)
            done = {futures[place] for place in places}
            plain(done)
            rest = {future for future in futures if future not in done}
            return concurrent.futures._base.DoneAndNotDoneFutures(done, rest)

        return wait

    def _done(self, plain: Callable[[Any], bool]) -> Callable[[Any], bool]:
        plain_wait = inspect.unwrap(concurrent.futures.wait)

        @functools.wraps(plain)
        def done(future: Any) -> bool:
            answer = plain(future)
            if not self._is_scripts():
                return answer
            told = bool(self._agree("Future.done", int(answer)))
            if told and not answer:
                plain_wait([future], PATIENCE_S)
            return told

        return done

    def _called(self, plain: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """The callback of a future that is done is called here and now; on all ranks, or on none."""
        plain_wait = inspect.unwrap(concurrent.futures.wait)
        plain_done = inspect.unwrap(concurrent.futures.Future.done)

        @functools.wraps(plain)
        def add_done_callback(future: Any, fn: Callable[[Any], object]) -> None:
            if not (called_by_script() and self._in_step()):
                return plain(future, fn)
            if self._agree("Future.add_done_callback", int(plain_done(future))):
                plain_wait([future], PATIENCE_S)
                return plain(future, fn)

            def call(done: Any) -> None:
                if threading.current_thread() is threading.main_thread():  # sooner done than on the main rank
                    threading.Thread(target=functools.partial(fn, done)).start()
                else:
                    fn(done)

            return plain(future, call)

        return add_done_callback

    def _remember_order(self, patches: Patches, results: Any) -> None:
        plain_init, plain_set = results.__init__, results._set

        def init(made: Any, *args: Any) -> None:
            plain_init(made, *args)
            made._items = _Items()

        def put(made: Any, number: int, outcome: Any) -> None:
            plain_set(made, number, _Numbered(outcome, number))

        patches.set(results, "__init__", init)
        patches.set(results, "_set", put)

    def _next(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def following(results: Any, timeout: float | None = None) -> Any:
            if not self._in_step():
                self._givers.in_no_order()
                return plain(results, timeout)
            return (
                self._first(results, plain, timeout) if self._comm.rank == 0 else self._same(results, plain)
            )

        return following

    def _first(self, results: Any, plain: Callable[..., Any], timeout: float | None) -> Any:
        """Whatever has come, on the main rank."""
        items: _Items = results._items
        items.taken = _END
        try:
            return plain(results, timeout)
        except multiprocessing.TimeoutError:
            if items.taken == _END:
                items.taken = _LATE
            raise
        finally:
            self._agree("the next result", items.taken)

    def _same(self, results: Any, plain: Callable[..., Any]) -> Any:
        """What the main rank has taken, once it has come to this rank."""
        items: _Items = results._items
        number = self._agree("the next result", 0)
        if number == _END:
            raise StopIteration
        if number == _LATE:
            raise multiprocessing.TimeoutError
        items.wanted = number
        try:
            while True:
                try:
                    return plain(results)
                except multiprocessing.TimeoutError:
                    if items.taken == number:
                        raise
        finally:
            items.wanted = None


class _Numbered(tuple[Any, ...]):
    """Whether a call went well and what it gave, and which call it was."""

    number: int

    def __new__(cls, outcome: Iterable[Any], number: int) -> _Numbered:
        made = super().__new__(cls, outcome)
        made.number = number
        return made


class _Items(collections.deque[Any]):
    """What has come.

    Attributes:
        wanted: the only one to be taken next, if not any.
        taken: the one that was taken last.
    """

    wanted: int | None = None
    taken: int = _END

    def popleft(self) -> Any:
        if self.wanted is None:
            item = super().popleft()
        else:
            found = [each for each in self if each.number == self.wanted]
            if not found:
                raise IndexError
            item = found[0]
            del self[next(place for place, each in enumerate(self) if each is item)]
        self.taken = item.number
        return item
