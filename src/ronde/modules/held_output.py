"""Buffer for prints and logs of a call, until the call is accepted.

Warnings are not held: they are shown once for each place.
"""

from __future__ import annotations

import builtins
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ronde.patching.caller import is_users
from ronde.patching.thread_stream import redirected
from ronde.rowwise.verdict import MixesRows

__all__ = ["HeldOutput"]


class HeldOutput:
    """Output of one call, on its own thread; other threads print as usual."""

    def __init__(self) -> None:
        self._said: list[Callable[[], object]] = []

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold prints and log records inside the `with` block.

        Raises:
            MixesRows: a file is opened for writing, which could not be undone.
        """
        with redirected("stdout", _HeldStream(self._said)), self._logging(), _no_files():
            yield

    def release(self) -> None:
        """Write all delayed output, in order."""
        said, self._said[:] = list(self._said), []
        for say in said:
            say()

    @contextmanager
    def _logging(self) -> Iterator[None]:
        plain, thread, said = logging.Logger.handle, threading.get_ident(), self._said

        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            if threading.get_ident() != thread:
                return plain(logger, record)
            said.append(lambda: plain(logger, record))

        logging.Logger.handle = handle  # type: ignore[method-assign]
        try:
            yield
        finally:
            logging.Logger.handle = plain  # type: ignore[method-assign]


class _HeldStream:
    """Replacement for standard output that buffers its writes."""

    def __init__(self, said: list[Callable[[], object]]) -> None:
        self._stream = sys.stdout
        self._said = said

    def write(self, text: str) -> int:
        self._said.append(lambda: sys.stdout.write(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """No-op: output is still delayed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _no_files() -> Iterator[None]:
    plain, plain_io, thread = builtins.open, io.open, threading.get_ident()

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        own = threading.get_ident() == thread and is_users(sys._getframe(1).f_code)
        if own and set(mode) & set("wax+"):
            raise MixesRows(f"it opens a file for writing ({file}) [R350]")
        return plain(file, mode, *args, **kwargs)

    builtins.open = io.open = opened  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.open, io.open = plain, plain_io
