"""The user's terminal, shared by the script and ronde's progress line.

The line never spoils what the script wrote: it is drawn only where the script has left the cursor at the
start of a line (a progress bar or a prompt has not), the cursor goes back there, and the line is wiped before
the script's next byte passes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping

from ronde.launch.write_all import write_all

__all__ = ["Screen"]

WIPE = b"\r\x1b[2K"
STDERR = 2
UNKNOWN_WIDTH = 80
# Seconds to wait for a terminal that accepts no bytes (Ctrl-S) before the line is left there.
PATIENCE_S = 0.2


class Screen:
    """One terminal with at most one line of ronde's own at its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._device = os.fstat(descriptor).st_rdev
        self._lock = threading.Lock()
        self._shown = False
        self._in_mid_line = False
        self._last_output = time.monotonic()

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> Screen | None:
        """Return stderr's terminal; None for files, pipes and dumb terminals."""
        if not os.isatty(STDERR) or environment.get("TERM", "dumb") == "dumb":
            return None
        return cls(STDERR)

    def is_behind(self, descriptor: int) -> bool:
        """Return whether output to `descriptor` appears on this terminal."""
        return os.isatty(descriptor) and os.fstat(descriptor).st_rdev == self._device

    def pass_on(self, descriptor: int, data: bytes) -> None:
        """Write the script's bytes, after removing the line.

        While a line is shown, all of the script's output goes through here.
        """
        with self._lock:
            self._wipe()
            write_all(descriptor, data)
            self._in_mid_line = data[-1:] != b"\n"
            self._last_output = time.monotonic()

    def silent_since(self) -> float:
        """Return the time of the script's last output, by the monotonic clock."""
        return self._last_output

    def show(self, text: str) -> None:
        """Draw `text`, cut to the terminal's width, unless a line is unfinished."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._in_mid_line or not self._is_ours():
                return
            columns = os.get_terminal_size(self._descriptor).columns or UNKNOWN_WIDTH
            line = text[: max(0, columns - 1)].encode("ascii", "replace")
            write_all(self._descriptor, WIPE + line + b"\r")
            self._shown = True
        except OSError:  # the terminal is gone
            self._shown = False
        finally:
            self._lock.release()

    def wipe(self) -> None:
        """Remove the line."""
        if self._lock.acquire(timeout=PATIENCE_S):
            try:
                self._wipe()
            finally:
                self._lock.release()

    def _wipe(self) -> None:
        if self._shown:
            self._shown = False
            with contextlib.suppress(OSError):
                write_all(self._descriptor, WIPE)

    def _is_ours(self) -> bool:
        """Return whether this process group is in the foreground of the terminal."""
        return os.tcgetpgrp(self._descriptor) == os.getpgrp()
