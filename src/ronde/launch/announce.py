"""ronde's own words to the user: on stderr, few, and marked as ronde's."""

from __future__ import annotations

import contextlib
import os

__all__ = ["say"]

STDERR = 2


def say(text: str, *, new_line: bool = False) -> None:
    """Write `text` to stderr in one piece, marked as ronde's.

    `new_line`: the script has left stderr in the middle of a line. The descriptor is written
    directly, so that the words do not overtake output of the script that was passed on before. A
    closed stderr does not end a run.
    """
    lines = ("\n" if new_line else "") + f"ronde: {text.rstrip()}\n"
    data = lines.encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(STDERR, data) :]
