"""What torch's layers are given for a collective that they have started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ronde.comm.backend import unseen
from ronde.comm.shared_mailbox import Mailbox, Receive, Send

__all__ = ["Completed", "Message"]

_NO_TIMEOUT = timedelta(0)


class Completed(dist.Work):
    """A collective that was complete when it returned; `tensors` are its results."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def result(self) -> list[Any]:
        return self._tensors

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Message(dist.Work):
    """A message on its way to or from one rank.

    Args:
        finish: what is to be done once it has come.
        lock: one thread at a time may use the mailbox.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        item: Send | Receive,
        tensors: Sequence[torch.Tensor],
        lock: Any,
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._item = item
        self._tensors = list(tensors)
        self._lock: threading.RLock = lock
        self._finish = finish

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        with self._lock, unseen():
            self._mailbox.wait(self._item)
            self._end()
        return True

    def is_completed(self) -> bool:
        with self._lock, unseen():
            self._mailbox.progress()
            done = self._item.posted if isinstance(self._item, Send) else self._item.done
            if done:
                self._end()
        return done

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        source = None if isinstance(self._item, Send) else self._item.source
        assert source is not None  # asked only of a receive that has been waited for
        return source

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def _end(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
