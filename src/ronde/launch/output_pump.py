"""Channels from a rank's output to its log and the user.

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
from typing import TYPE_CHECKING

from ronde.launch.labelled_lines import LabelledLines
from ronde.launch.screen import Screen
from ronde.launch.terminal import copy_size, open_pty
from ronde.launch.write_all import write_all

if TYPE_CHECKING:
    from ronde.launch.repeated_lines import RepeatedLines

__all__ = ["OutputPump", "RankOutput", "fill_standard_descriptors"]

STDOUT, STDERR = 1, 2
_STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
CHUNK = 65536


def fill_standard_descriptors() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed.

    Otherwise the next opened file would take the free number, and get the script's output.
    """
    for descriptor in (0, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


class OutputPump:
    """Copies one channel to `log`, and to an optional `sink`, until its end.

    `like` is the user's stream whose terminal size the channel follows, `screen` the terminal on which ronde
    may show its progress line. A `label` is printed before each line. `repeated` filters lines of an earlier
    attempt.
    """

    def __init__(
        self,
        source: int,
        sink: int | None,
        log: int,
        *,
        like: int,
        screen: Screen | None = None,
        label: str = "",
        repeated: RepeatedLines | None = None,
    ) -> None:
        self._source = source
        self._repeated = repeated
        self._lines = LabelledLines(label, sink) if label and sink is not None else None
        self._pass_on = self._lines.add if self._lines is not None else _passing(sink, screen)
        self._like = like
        self._log = log
        self._idle = threading.Event()
        self._last = b"\n"
        self._thread = threading.Thread(target=self._run, name="ronde output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def in_mid_line(self) -> bool:
        """Return whether the last byte passed on did not end a line."""
        return self._last != b"\n"

    def join(self, timeout: float) -> bool:
        """Wait for the end of the channel; return whether all output was passed on.

        It is also true if a process that cannot be ended keeps the channel open, but writes nothing.
        """
        self._thread.join(timeout)
        return not self._thread.is_alive() or (self._idle.is_set() and not _readable(self._source, 0.2))

    def resize(self) -> None:
        """Apply a new size of the user's terminal."""
        if self._thread.is_alive() and os.isatty(self._like):
            copy_size(self._like, self._source)

    def _run(self) -> None:
        """Copy bytes until the end; close the channel when its sink's reader is gone."""
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
                        write_all(self._log, data)
                    except OSError:
                        logging = False  # a full disk must not stop the script's output
                self._show(data if self._repeated is None else self._repeated.add(data))
            if self._repeated is not None:
                self._show(self._repeated.end())
        if self._lines is not None:
            self._lines.end()
        os.close(self._source)
        os.close(self._log)

    def _show(self, data: bytes) -> None:
        if not data:
            return
        if self._pass_on is not None:
            self._pass_on(data)
        self._last = data[-1:]


@dataclasses.dataclass(frozen=True, slots=True)
class RankOutput:
    """The write ends of one rank's stdout and stderr, and their pumps."""

    stdout: int
    stderr: int
    pumps: tuple[OutputPump, ...]

    @classmethod
    def open(
        cls,
        log: Path,
        *,
        shown: bool,
        like_user: bool,
        screen: Screen | None = None,
        label: str = "",
        repeated: Callable[[str], RepeatedLines] | None = None,
    ) -> RankOutput:
        """Open the log and the pipes to it.

        Args:
            shown: whether output also goes to this process's stdout and stderr; rank 0's does.
            like_user: whether the rank's stream is a terminal if the user's is. Scripts check for a terminal
                (progress bars do, `os.get_terminal_size` raises), and all ranks must get the same answer.
                Otherwise the rank writes into the log directly.
            label: prefix of each shown line, with the name of its stream.
            repeated: function that makes the filter of repeated lines for a stream, by its name.
        """
        log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        one_file = not label and os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR))
        ends: list[int] = []
        pumps: list[OutputPump] = []
        for descriptor in (STDOUT, STDERR):
            if descriptor == STDERR and one_file:
                ends.append(ends[0])
            elif shown or (like_user and os.isatty(descriptor)):
                ours, theirs = _open_channel(descriptor)
                sink = descriptor if shown else None
                named = f"{label}<{_STREAMS[descriptor]}>:" if label else ""
                known = repeated(_STREAMS[descriptor]) if shown and repeated is not None else None
                kept = os.dup(log_file)
                pumps.append(
                    OutputPump(ours, sink, kept, like=descriptor, screen=screen, label=named, repeated=known)
                )
                ends.append(theirs)
            else:
                ends.append(log_file)
        if log_file not in ends:
            os.close(log_file)
        return cls(stdout=ends[0], stderr=ends[1], pumps=tuple(pumps))

    def start(self) -> None:
        """Start copying, and close this process's write ends.

        So a channel ends when the rank does.
        """
        for descriptor in {self.stdout, self.stderr}:
            os.close(descriptor)
        for pump in self.pumps:
            pump.start()

    def drain(self, *, until: Callable[[], bool]) -> None:
        """Wait until all output has been passed on, or `given_up`."""
        for pump in self.pumps:
            while not pump.join(0.02) and not until():
                pass

    @property
    def stderr_in_mid_line(self) -> bool:
        return bool(self.pumps) and self.pumps[-1].in_mid_line

    def resize(self) -> None:
        for pump in self.pumps:
            pump.resize()


def _passing(sink: int | None, screen: Screen | None) -> Callable[[bytes], None] | None:
    if sink is None:
        return None
    if screen is not None and screen.is_behind(sink):
        return lambda data: screen.pass_on(sink, data)
    return lambda data: write_all(sink, data)


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
