"""Parser of the stacks that `faulthandler` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ronde.trace.script_line import ScriptLine

__all__ = ["ScriptPlace", "StackFrame", "inside", "main_frames", "script_place"]

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
# Of any interpreter: evidence may come from another host.
_LIBRARY = re.compile(r"/lib(64)?/python3[.\d]*/|/(site|dist)-packages/")
_HEAD = re.compile(r"(Current thread|Thread|Stack) ")


class StackFrame(NamedTuple):
    """One call, as a stack shows it."""

    file: str
    line: int
    function: str


def main_frames(stack: str) -> Sequence[StackFrame]:
    """Parse the frames of the first thread, the innermost first."""
    found: list[StackFrame] = []
    for line in stack.splitlines():
        match = _FRAME.fullmatch(line)
        if match:
            number = match["line"]
            found.append(
                StackFrame(match["file"], int(number) if number.isdecimal() else 0, match["function"])
            )
        elif found and (_HEAD.match(line) or not line.strip()):
            break
    return found


class ScriptPlace(NamedTuple):
    """A line of the script, and whether it is the innermost frame."""

    where: str
    is_innermost: bool


def script_place(frames: Sequence[StackFrame]) -> ScriptPlace | None:
    """Find the innermost line of the script, "train.py:12, in load"; None without one."""
    lines = ScriptLine()
    for depth, frame in enumerate(frames):
        name = "" if _LIBRARY.search(frame.file) else lines.name(frame.file)
        if name:
            return ScriptPlace(f"{name}:{frame.line}, in {frame.function}", depth == 0)
    return None


def inside(frames: Sequence[StackFrame], file: str, *functions: str) -> bool:
    """Return whether a function in a file with this suffix is running."""
    return any(
        frame.file.endswith(file) and (not functions or frame.function in functions) for frame in frames
    )
