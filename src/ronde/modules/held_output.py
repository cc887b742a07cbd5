"""What a call prints, logs and warns of, held back until it is known whether the call stands."""

from __future__ import annotations

import builtins
import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ronde.patching.caller import is_users
from ronde.patching.thread_stream import redirected
from ronde.rowwise.verdict import MixesRows

__all__ = ["HeldOutput"]

# Whatever is shown is not marked as shown: the call may come again.
_ALWAYS = ("always", None, Warning, None, 0)


class HeldOutput:
    """Of one call, and of the thread that makes it: others print and write as ever."""

    def __init__(self) -> None:
        self._said: list[Callable[[], object]] = []

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Inside, nothing is printed, logged or warned of.

        Raises:
            MixesRows: where a file is opened for writing, which nobody could take back.
        """
        with (
            redirected("stdout", _Held("stdout", self._said)),
            redirected("stderr", _Held("stderr", self._said)),
            self._logging(),
            self._warnings(),
            _no_files(),
        ):
            yield

    def release(self) -> None:
        """Say all of it, in order."""
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

    @contextmanager
    def _warnings(self) -> Iterator[None]:
        module: Any = warnings  # as types have it `filters` cannot be written
        filters, shown_by, thread, said = (
            module.filters,
            module.showwarning,
            threading.get_ident(),
            self._said,
        )

        def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
            if threading.get_ident() != thread:
                return shown_by(message, category, filename, lineno, *rest)
            said.append(
                lambda: warnings.warn_explicit(
                    message, category, filename, lineno, registry=_registry_of(filename)
                )
            )

        before = list(filters)
        filters.insert(0, _ALWAYS)
        module.showwarning = show
        try:
            yield
        finally:
            filters[:] = before
            module.filters, module.showwarning = filters, shown_by


class _Held:
    """Stands for a standard stream, and keeps what is written."""

    def __init__(self, name: Literal["stdout", "stderr"], said: list[Callable[[], object]]) -> None:
        self._name = name
        self._stream = getattr(sys, name)
        self._said = said

    def write(self, text: str) -> int:
        self._said.append(lambda: getattr(sys, self._name).write(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._said.append(lambda: getattr(sys, self._name).flush())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _registry_of(filename: str) -> dict[Any, Any]:
    """Where a module notes which of its warnings were shown."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == filename:
            return vars(module).setdefault("__warningregistry__", {})
    return {}


@contextmanager
def _no_files() -> Iterator[None]:
    plain, plain_io, thread = builtins.open, io.open, threading.get_ident()

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        own = threading.get_ident() == thread and is_users(sys._getframe(1).f_code)
        if own and set(mode) & set("wax+"):
            raise MixesRows(f"it opens a file for writing ({file})")
        return plain(file, mode, *args, **kwargs)

    builtins.open = io.open = opened  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.open, io.open = plain, plain_io
