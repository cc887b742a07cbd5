"""Terminals: the foreground group, and a pty for a rank's output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios

__all__ = ["copy_size", "in_foreground", "open_pty"]

OUTPUT_FLAGS = 1  # index in the list of termios attributes


def in_foreground() -> bool:
    """Return whether this process group gets the terminal's keys."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def open_pty(like: int) -> tuple[int, int]:
    """Open a pty (our end, the rank's end) like the terminal `like`.

    The user's own terminal will turn "\\n" into "\\r\\n"; done twice, bytes would not be the script's.
    """
    ours, theirs = os.openpty()
    with contextlib.suppress(termios.error):
        attributes = termios.tcgetattr(like)
        attributes[OUTPUT_FLAGS] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    copy_size(like, ours)
    return ours, theirs


def copy_size(source: int, target: int) -> None:
    """Copy rows and columns of terminal `source` to `target`, if both exist."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
