"""What goes on while the caller does: by a thread that does one thing after another, or by other ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

__all__ = ["Lane", "Started", "Task"]

_PATIENCE_S = 5.0


class Task:
    """Something under way; `wait` returns when it is done, or raises what it raised."""

    __slots__ = ("_done", "_error", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._done = threading.Event()
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error

    def run(self, broken: BaseException | None) -> BaseException | None:
        """Do it, unless something before it has failed; returns the failure."""
        work, self._work = self._work, None
        self._error = broken
        if broken is None and work is not None:
            try:
                work()
            except BaseException as error:
                self._error = error
        self._done.set()
        return self._error


class Lane:
    """Does what it is given in order, on a thread of its own with one processor core.

    After a failure nothing more is done: peers go by the order, which cannot be kept any longer.
    """

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # A thread of many threads would fight with the model's own. Setting that also changes what threads
        # begin with that are made later, so it is put back.
        threads = torch.get_num_threads()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(ready,), name=name, daemon=True)
        self._thread.start()
        ready.wait()
        torch.set_num_threads(threads)

    def start(self, work: Callable[[], object]) -> Task:
        task = Task(work)
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """End the thread when it has done what it was given; a second call does nothing."""
        self._tasks.put(None)
        self._thread.join(_PATIENCE_S)

    def _work(self, ready: threading.Event) -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread looks at what is set when it first asks, and keeps to it
        ready.set()
        broken: BaseException | None = None
        # The caller's own mode is not known here, and a tensor made in this one is changed in no other.
        with torch.inference_mode():
            while (task := self._tasks.get()) is not None:
                broken = task.run(broken)
                del task  # what it holds is the caller's


class Started:
    """A collective that this rank has begun.

    Completed when this rank needs the result, or goes on to another collective.
    """

    def __init__(self, complete: Callable[[], None]) -> None:
        self._complete: Callable[[], None] | None = complete

    def wait(self) -> None:
        """Wait for the others; a second call does nothing."""
        complete, self._complete = self._complete, None
        if complete is not None:
            complete()
