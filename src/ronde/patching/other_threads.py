"""Other threads of the script, and what their code has in hand.

They run whenever they please, so what they change while a model is tried cannot be told from what the model
changes, and must not be undone.
"""

from __future__ import annotations

import concurrent.futures
import dis
import multiprocessing.pool
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from ronde.boundary.reach import Reach, is_users, names_in

__all__ = ["changed_by_others", "is_of_script", "others", "others_run", "reads_ahead_for"]

# Whose threads run no code of a script's: ours, feeders of queues, monitors of progress bars, loggers'.
_BACKSTAGE = (
    "ronde.", "multiprocessing.queues", "multiprocessing.resource_sharer", "torch._", "torch.utils.data.",
    "tqdm.", "tensorboard.", "tensorboardX.", "wandb.",
)  # fmt: skip
# Of methods that change what they are called on.
_CHANGING = {
    "add", "append", "appendleft", "clear", "copyto", "discard", "extend", "extendleft", "fill", "insert",
    "pop", "popitem", "popleft", "remove", "setattr", "setdefault", "sort", "update",
    "__setattr__", "__setitem__",
}  # fmt: skip
_STORES = {"STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR", "STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"}
_POOLS = (threading.Thread, concurrent.futures.Executor, multiprocessing.pool.Pool)


def others_run() -> bool:
    """Whether threads are there beside this one that may run code of the script's."""
    return any(True for _ in others())


def is_of_script(thread: threading.Thread) -> bool:
    """Whether it may run code of the script's, and is no feeder, monitor or logger of a library's."""
    # A timer keeps what it calls by another name.
    target: Any = getattr(thread, "_target", None) or getattr(thread, "function", None) or type(thread).run
    began = not isinstance(thread, threading._DummyThread)  # Python has not started that
    return began and not str(getattr(target, "__module__", "")).startswith(_BACKSTAGE)


def others() -> Iterator[threading.Thread]:
    """The threads beside this one that may run code of the script's."""
    here = threading.current_thread()
    return (each for each in threading.enumerate() if each is not here and is_of_script(each))


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


def reads_ahead_for(value: Any, reach: Reach) -> bool:
    """Whether a thread works for an object: it has one, or a pool of them, or one runs what leads to it.

    Args:
        reach: what the object reaches.
    """
    if any(isinstance(each, _POOLS) for _, each in reach.values):
        return True
    led = Reach(libraries=True)
    for thread in others():
        led.visit(getattr(thread, "_target", None))
    return any(each is value for _, each in led.values)
