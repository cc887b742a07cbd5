"""Tracebacks of the script's errors as Python prints them, without ronde's own frames."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from ronde.errors import DivergedError, RondeError
from ronde.trace.script_line import RONDE

__all__ = ["formatted", "show", "show_those_of_threads"]

# Frames are also removed from an error of a loader's worker, which has its traceback as text.
_OUR_FRAME = re.compile(rf'^  File "{re.escape(RONDE)}.*\n(?:    .*\n)*', re.MULTILINE)


def formatted(error: BaseException) -> str:
    """Format the traceback of an error with its causes."""
    described = traceback.TracebackException.from_exception(error)
    pending = [described]
    while pending:
        part = pending.pop()
        own = [frame for frame in part.stack if not _is_ours(frame.filename)]
        part.stack = traceback.StackSummary.from_list(own)
        pending.extend(linked for linked in (part.__cause__, part.__context__) if linked is not None)
    return _OUR_FRAME.sub("", "".join(described.format()))


def show(error: BaseException) -> None:
    """Print the script's final error, by the script's own hook if it has one."""
    if sys.excepthook is not sys.__excepthook__:
        kind, trace = type(error), error.__traceback__
        sys.excepthook(kind, error, _without_ours(trace))
    else:
        sys.stderr.write(formatted(error))
    sys.stderr.flush()


def show_those_of_threads(end: Callable[[DivergedError | RondeError], object]) -> None:
    """Print errors that end threads of the script, unless it has a hook.

    Args:
        end: callback for a refusal of ronde's, after which the main thread may wait for this one for ever.
    """

    def hook(ended: threading.ExceptHookArgs) -> None:
        error = ended.exc_value
        if isinstance(error, DivergedError | RondeError):
            end(error)
        elif error is not None and not isinstance(error, SystemExit):
            name = threading.get_ident() if ended.thread is None else ended.thread.name
            sys.stderr.write(f"Exception in thread {name}:\n{formatted(error)}")
            sys.stderr.flush()

    threading.excepthook = hook


def _is_ours(filename: str) -> bool:
    return filename.startswith((RONDE, "<frozen runpy>"))


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace
