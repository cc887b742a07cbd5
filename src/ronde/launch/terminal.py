"""Terminals: who is in the foreground, and a pty behind which a rank takes its output for a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios

__all__ = ["copy_size", "in_foreground", "open_pty"]

OUTPUT_FLAGS = 1  # its place in the list of termios attributes


def in_foreground() -> bool:
    """Whether this process group is the one to which the controlling terminal's keys speak."""
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
    """A pty (our end, the rank's end) set up as the terminal `like`, but passing bytes as they are.

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
    """Give the terminal `target` the rows and columns of `source`; one of them may be gone."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
