"""What the code of the script's other threads may change."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator

from ronde.boundary.reach import Reach, names_in
from ronde.patching.caller import is_users
from ronde.patching.other_threads import others

__all__ = ["changed_by_others"]

# Of methods that change what they are called on.
_CHANGING = {
    "add", "append", "appendleft", "clear", "copyto", "discard", "extend", "extendleft", "fill", "insert",
    "pop", "popitem", "popleft", "remove", "setattr", "setdefault", "sort", "update",
    "__setattr__", "__setitem__",
}  # fmt: skip
_STORES = {"STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR", "STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"}


def changed_by_others() -> Reach | None:
    """What other threads' code may change: all that it reaches, if any of it changes something.

    Found by the functions that a thread is in, and what they lead to; of one that waits for work nothing is
    known.
    """
    idents = {thread.ident for thread in others()}
    if not idents:
        return None
    reach, codes = Reach(), list[types.CodeType]()
    # Not in a variable of this function, whose frame is among them: what all have in hand would wait for the
    # collector.
    for frame in [frame for ident, frame in sys._current_frames().items() if ident in idents]:
        codes += _visit(reach, frame)
    codes += [value.__code__ for _, value in reach.values if isinstance(value, types.FunctionType)]
    return reach if any(map(_changes_something, codes)) else None


def _visit(reach: Reach, frame: types.FrameType | None) -> Iterator[types.CodeType]:
    """The user's functions that a thread is in, from the innermost."""
    while frame is not None:
        if is_users(frame.f_code):
            reach.visit_frame(frame)
            yield frame.f_code
        frame = frame.f_back


def _changes_something(code: types.CodeType) -> bool:
    if not is_users(code):
        return False
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    stores = any(step.opname in _STORES for step in dis.get_instructions(code))
    return stores or not _CHANGING.isdisjoint(names_in(code)) or any(map(_changes_something, inner))
