"""End of a rank with process groups of the script's own.

A thread of such a group holds a collective a moment longer than the script that waited for it. The objects
that it then releases may belong to Python (a tensor, or a hook or mode under which the collective began), and
for that it asks for the interpreter. An interpreter that is being finalized ends each thread that asks, and a
destructor in C++ cannot be ended: the process aborts ("terminate called without an active exception") after
all of its work. Nothing joins these threads before: the reducer of a `DistributedDataParallel` keeps their
group past `destroy_process_group`, which many scripts do not call at all.

So such a rank itself does the visible part of the interpreter's end, and leaves without finalizing it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import stat
import sys
import threading
import traceback
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

__all__ = ["exit_code", "groups_have_threads", "leave"]

# The names that torch gives to threads of its groups.
_GLOO, _NCCL = "pt_gloo", "pt_nccl"
# Exit code of an interpreter that could not write the last of the output.
_OUTPUT_LOST = 120
# Modules that a `__del__` of the script may still call.
_NEEDED_TO_DESTROY = (ModuleType, FunctionType, BuiltinFunctionType, type)


def groups_have_threads() -> bool:
    """Return whether a thread of a process group, Gloo's or NCCL's, runs here."""
    return _runs(_GLOO, _NCCL)


def exit_code(end: SystemExit | KeyboardInterrupt) -> int:
    """Return the exit code of an exception, or minus the signal's number.

    A message in place of a code is printed, as the interpreter does.
    """
    if isinstance(end, KeyboardInterrupt):
        return -signal.SIGINT
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """End this process as the interpreter does, but do not finalize it.

    Threads are joined, exit handlers run, files that the script left open are closed, output is flushed.
    Files that other modules hold, or a daemon thread of the script may use, are flushed, and objects there
    are not destroyed. Functions registered by C's `atexit` do not run.

    Args:
        code: result of `exit_code`. Its exception must be gone: its frames hold objects to be closed.
    """
    with contextlib.suppress(KeyboardInterrupt):  # the interpreter continues after errors here, too
        threads: Any = threading
        threads._shutdown()
    atexit._run_exitfuncs()
    _flush_files()
    _let_go_of_script()
    if code == 0:
        _end_collectives()
    well = _flush_output()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code  # where the signal is blocked
    os._exit(code if well else _OUTPUT_LOST)


def _runs(*prefixes: str) -> bool:
    """Return whether this process has a thread with such a name."""
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            if name.read_text().startswith(prefixes):
                return True
    return False


def _let_go_of_script() -> None:
    """Destroy objects that only the script's names hold, as the interpreter would.

    This closes files, and so writes them. Objects are destroyed one by one, the newest first: the garbage
    collector might close a file before a wrapper around it is flushed.
    """
    names: dict[str, Any] = getattr(sys.modules.get("__main__"), "__dict__", {})
    if _used_by_threads(names):
        return
    for name in reversed(list(names)):
        if not issubclass(type(names[name]), _NEEDED_TO_DESTROY) and not str(name).startswith("__"):
            names[name] = None
    gc.collect()


def _used_by_threads(names: dict[str, Any]) -> bool:
    """Return whether a daemon thread is in a function of the script.

    The interpreter would have halted it.
    """
    for frame in sys._current_frames().values():
        outer: FrameType | None = frame
        while outer is not None:
            if outer.f_globals is names:
                return True
            outer = outer.f_back
    return False


def _end_collectives() -> None:
    """Wait for collectives that the script began and did not wait for.

    Peers may still be about to wait for them. Destroying a Gloo group, as the interpreter's finalization
    would, waits for its collectives; torch aborts those of an NCCL group.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized() and not _runs(_NCCL):
        with contextlib.suppress(Exception):
            distributed.destroy_process_group()


def _flush_files() -> None:
    """Write buffered text of open files, such as files of other modules.

    Pipes and sockets are left out: their readers may never read.
    """
    for each in gc.get_objects():
        with contextlib.suppress(Exception):
            # By `type()`: reading `__class__` of a placeholder for a deprecated object would print a warning.
            if issubclass(type(each), io.IOBase) and stat.S_ISREG(os.fstat(each.fileno()).st_mode):
                each.flush()


def _flush_output() -> bool:
    """Write the last of the output; return whether that succeeded."""
    well = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            well = False
            with contextlib.suppress(Exception):
                traceback.print_exc()
    ctypes.CDLL(None).fflush(None)  # output of libraries in C
    return well
