"""Messages of ronde to the user on stderr, each marked as ronde's."""

from __future__ import annotations

import contextlib
import os

from ronde.messages import lift

__all__ = ["say"]

STDERR = 2


def say(text: str, *, new_line: bool = False, error: bool = False) -> None:
    """Write `text` to stderr in one piece, marked as ronde's.

    The descriptor is written directly, so that the words do not overtake output of the script that was passed
    on before. A closed stderr does not end a run.

    Args:
        text: the message; one with a code is shown as `note[R310]: ...`.
        new_line: whether the script has left stderr in the middle of a line.
        error: whether a message with a code is shown as `error[R104]: ...`.
    """
    code, words = lift(text.rstrip())
    mark = f"{'error' if error else 'note'}[{code}]: " if code else ""
    lines = ("\n" if new_line else "") + f"ronde: {mark}{words}\n"
    data = lines.encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(STDERR, data) :]
