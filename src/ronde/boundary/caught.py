"""Whether code that is under way would do something about an interrupt: catch it, or save what there is."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

__all__ = ["is_caught"]

_NAMES = {"KeyboardInterrupt", "BaseException"}


def is_caught(frame: FrameType | None, *, is_scripts: Callable[[FrameType], bool]) -> bool:
    """Whether a frame from this one on names what is raised, or is one of the script's inside of a `try`
    with `finally:` or a bare `except:`.

    Args:
        is_scripts: whether a frame is asked at all.
    """
    while frame is not None:
        code = frame.f_code
        named = not _NAMES.isdisjoint(code.co_names)
        if (named or _is_kept(code, frame.f_lasti)) and is_scripts(frame):
            return True
        frame = frame.f_back
    return False


def _is_kept(code: CodeType, place: int) -> bool:
    """Whether an exception raised at this place of the code comes to `finally:` or a bare `except:` there.

    Python 3.10 keeps no table of them: names must do.
    """
    entries = list(_exception_table(getattr(code, "co_exceptiontable", b"")))
    if not entries:
        return False
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    index = {each.offset: number for number, each in enumerate(instructions)}
    tried: set[int] = set()
    while place not in tried:
        tried.add(place)
        # What a handler does not take it raises again, to the handler around it.
        target = next((target for begin, end, target in entries if begin <= place < end), None)
        if target is None:
            return False
        if _takes_all(instructions, index.get(target, len(instructions)), index):
            return True
        place = target
    return False


def _takes_all(instructions: list[dis.Instruction], at: int, index: dict[int, int]) -> bool:
    """Whether a handler is neither that of a `with`, whose end is as good as its begin, nor for some classes
    alone, nor one of the compiler's own.
    """
    if at >= len(instructions) or instructions[at].opname != "PUSH_EXC_INFO":
        return False
    at += 1
    while at < len(instructions):
        begin = at
        while instructions[at].opname.startswith(_EXPRESSION) and at + 1 < len(instructions):
            at += 1
        if instructions[at].opname != "CHECK_EXC_MATCH":
            return instructions[begin].opname not in ("WITH_EXCEPT_START", "RERAISE")
        # The jump behind it leads to the next `except`.
        at = index.get(instructions[at + 1].argval, len(instructions))
    return False


# Of what the classes behind `except` are made; calls are not looked through.
_EXPRESSION = ("LOAD_", "BUILD_TUPLE")


def _exception_table(table: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each entry the first place that it covers, the first behind, and its handler's.

    As in CPython's `Objects/exception_handling_notes.txt`.
    """
    parts = iter(table)
    for first in parts:
        begin, length, target, _ = (2 * each for each in _numbers(first, parts))
        yield begin, begin + length, target


def _numbers(first: int, parts: Iterator[int]) -> Iterator[int]:
    """Four numbers: six bits to a byte, the highest first, of which each but the last has the seventh set."""
    for number in range(4):
        byte = first if number == 0 else next(parts)
        value = byte & 63
        while byte & 64:
            byte = next(parts)
            value = value << 6 | byte & 63
        yield value
