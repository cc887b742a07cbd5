"""The main rank's output: passed on to the user's stdout and stderr byte for byte, and copied to its log.

A stream that is a terminal for the user is one for the rank too (behind a pty), any other is a
pipe. Where stdout and stderr are the same file, one channel carries both, which keeps their order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from ronde.launch.terminal import copy_size, open_pty

__all__ = ["OutputPump", "PassThrough", "fill_standard_descriptors"]

STDOUT, STDERR = 1, 2
CHUNK = 65536


def fill_standard_descriptors() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed.

    The next file that is opened would take the free number, and the script's output would end in it.
    """
    for descriptor in (0, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, hence this one


class OutputPump:
    """Copies one channel to `sink` and to `log` until all its writers are gone."""

    def __init__(self, source: int, sink: int, log: int) -> None:
        self._source = source
        self._sink = sink
        self._log = log
        self._idle = threading.Event()
        self._last = b"\n"
        self._thread = threading.Thread(target=self._run, name=f"ronde output {sink}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def sink(self) -> int:
        return self._sink

    @property
    def in_mid_line(self) -> bool:
        """The last byte passed on did not end a line: words of ronde should begin a new one."""
        return self._last != b"\n"

    def join(self, timeout: float) -> bool:
        """Wait for the end of the channel; True when everything has been passed on.

        Also true when a process that cannot be ended holds the channel open, but nothing comes.
        """
        self._thread.join(timeout)
        return not self._thread.is_alive() or (self._idle.is_set() and not _readable(self._source, 0.2))

    def resize(self) -> None:
        """Pass a new size of the user's terminal on."""
        if self._thread.is_alive():
            copy_size(self._sink, self._source)

    def _run(self) -> None:
        """A sink whose reader went away ends the channel: the script then meets the broken pipe itself."""
        logging = True
        with contextlib.suppress(OSError):  # at the end of a pty: EIO
            while True:
                self._idle.set()
                data = os.read(self._source, CHUNK)
                self._idle.clear()
                if not data:
                    break
                if logging:
                    try:
                        _write_all(self._log, data)
                    except OSError:
                        logging = False  # a full disk must not stop the script's output
                _write_all(self._sink, data)
                self._last = data[-1:]
        os.close(self._source)


@dataclasses.dataclass(frozen=True, slots=True)
class PassThrough:
    """The main rank's two streams: the ends that the rank gets, and the pumps behind them."""

    stdout: int
    stderr: int
    pumps: tuple[OutputPump, ...]
    log: int

    @classmethod
    def open(cls, log: Path) -> PassThrough:
        log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        ours, theirs = _open_channel(STDOUT)
        pumps = [OutputPump(ours, STDOUT, log_file)]
        if os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR)):
            return cls(stdout=theirs, stderr=theirs, pumps=tuple(pumps), log=log_file)
        ours, theirs_too = _open_channel(STDERR)
        pumps.append(OutputPump(ours, STDERR, log_file))
        return cls(stdout=theirs, stderr=theirs_too, pumps=tuple(pumps), log=log_file)

    def start(self) -> None:
        """Give up the rank's ends, so that the channels end with the rank, and start to copy."""
        for descriptor in {self.stdout, self.stderr}:
            os.close(descriptor)
        for pump in self.pumps:
            pump.start()

    def drain(self, *, until: Callable[[], bool]) -> None:
        """Wait until everything has been passed on, or until `until()`: a pager may hold it up for long."""
        for pump in self.pumps:
            while not pump.join(0.02) and not until():
                pass

    @property
    def stderr_in_mid_line(self) -> bool:
        return self.pumps[-1].in_mid_line

    def resize(self) -> None:
        for pump in self.pumps:
            if os.isatty(pump.sink):
                pump.resize()


def _open_channel(sink: int) -> tuple[int, int]:
    if os.isatty(sink):
        with contextlib.suppress(OSError):  # no pty left, or none in this container
            return open_pty(sink)
    return os.pipe()


def _readable(descriptor: int, timeout: float) -> bool:
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    except (OSError, ValueError):
        return False


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody made the user's terminal non-blocking
            select.select([], [descriptor], [])
