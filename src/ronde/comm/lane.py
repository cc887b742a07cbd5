"""Background work: tasks on a thread in order, and collectives that complete later."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

__all__ = ["Lane", "PendingCollective", "Task"]

_PATIENCE_S = 5.0


class Task:
    """Work under way; `wait` returns when it is done, or raises its exception."""

    __slots__ = ("_done", "_error", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._done = threading.Event()
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True when `wait` would return, or raise, at once."""
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error

    def run(self, broken: BaseException | None) -> BaseException | None:
        """Run the work unless an earlier task has failed; return the failure."""
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
    """Worker thread on one processor core; runs its tasks in order.

    After a failure no task is run: peers rely on the order, which cannot be kept any longer.
    """

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # Operators of this thread that used several threads would compete with the model's. The setting also
        # changes the default of later threads, so it is put back.
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
        """End the thread after its tasks; a second call does nothing."""
        self._tasks.put(None)
        self._thread.join(_PATIENCE_S)

    def _work(self, ready: threading.Event) -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread reads the setting when it first asks, and keeps it
        ready.set()
        broken: BaseException | None = None
        # A tensor made in inference mode can be changed in that mode only; the caller may have made it in
        # either.
        with torch.inference_mode():
            while (task := self._tasks.get()) is not None:
                broken = task.run(broken)
                del task  # so that only the caller refers to its tensors


class PendingCollective:
    """A collective that this rank has begun.

    It is completed when this rank needs the result, or goes on to another collective.
    """

    def __init__(self, complete: Callable[[], None]) -> None:
        self._complete: Callable[[], None] | None = complete

    def wait(self) -> None:
        """Wait for the others; a second call does nothing."""
        complete, self._complete = self._complete, None
        if complete is not None:
            complete()
