"""Who may read what: counts of flushes and closes per file, told by the main rank, awaited by the others.

A file's count is `closes * 2**32 + flushes since the last close`, so that ranks whose text differs
in length (times of day) and which therefore flush unequally often agree again when the file is closed.
"""

from __future__ import annotations

import os
import threading

from ronde.boundary.files.meeting import Meeting

__all__ = ["Publications"]

_CLOSE = 1 << 32
_DELAY = 0.02
"""Seconds that the main rank may keep a flush to itself: a log line's flush then costs nothing."""


class Publications:
    """The counts of one rank.

    On the main rank `_pending` are counts not told yet; on other ranks `_unsettled` are counts that
    this rank came to and has not seen the main rank come to.
    """

    def __init__(self, meeting: Meeting, *, is_main: bool) -> None:
        self._meeting = meeting
        self._is_main = is_main
        self._counts: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        self._unsettled: dict[str, int] = {}
        self._lock = threading.RLock()  # a collected file may close itself in here
        self._timer: threading.Timer | None = None
        self._stopped = True

    @property
    def all_settled(self) -> bool:
        return not self._unsettled and not self._pending

    def announce(self, key: str, closed: bool) -> None:
        """A mediated file was flushed or closed by the script on this rank."""
        if self._stopped:
            return
        count = self._counts.get(key, 0)
        count = (count // _CLOSE + 1) * _CLOSE if closed else count + 1
        self._counts[key] = count
        if not self._is_main:
            self._unsettled[key] = count
        elif closed:
            with self._lock:
                self._pending.pop(key, None)
                self._meeting.publish(key, count)
        else:
            with self._lock:
                self._pending[key] = count
                if self._timer is None:
                    self._timer = threading.Timer(_DELAY, self._publish_late)
                    self._timer.daemon = True
                    self._timer.start()

    def start(self) -> None:
        """Count from now on."""
        self._stopped = False

    def settle(self) -> None:
        """Every rank has come here (a barrier): what was written before is there for all."""
        self._unsettled.clear()
        with self._lock:
            self._pending.clear()

    def before_reading(self, located: str) -> None:
        """Make the next read of `located` see what the script wrote to it before."""
        key = os.path.realpath(located)
        if self._is_main:
            # The others are about to read it too: they need not wait for the timer.
            self._publish(key)
        elif key in self._unsettled:
            self._meeting.wait(key, self._unsettled[key])
            self._unsettled.pop(key, None)

    def before_child(self) -> None:
        """A process that knows nothing of ranks is about to start: it must find everything written."""
        if self._is_main:
            self._publish_all()
        for key, count in list(self._unsettled.items()):
            self._meeting.wait(key, count)
            self._unsettled.pop(key, None)

    def stop(self) -> None:
        """Tell what is pending; files closed later (at interpreter exit) are nobody's concern."""
        self._stopped = True
        if self._is_main:
            self._publish_all()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()

    def _publish(self, key: str) -> None:
        with self._lock:
            if key in self._pending:
                self._meeting.publish(key, self._pending.pop(key))

    def _publish_all(self) -> None:
        for key in list(self._pending):
            self._publish(key)

    def _publish_late(self) -> None:
        with self._lock:
            self._timer = None
        if not self._stopped:
            self._publish_all()
