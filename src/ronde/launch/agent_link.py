"""The launcher's connection to one agent: its process and its frames."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ronde.errors import LaunchError
from ronde.launch.clock import HostClock
from ronde.launch.frames import FrameError, FrameKind, Sender, frames, skip_to_magic, unpack
from ronde.launch.linux_process import bind_to_parent, load_prctl
from ronde.launch.signal_inbox import SignalInbox

__all__ = ["AgentLink"]

_LINES = 20
_PATIENCE_S = 1.0


class AgentLink:
    """One host's agent, as its launcher sees it.

    Args:
        index: number of the host.
        name: name of the host.
        ranks: number of its ranks.
        show: writes rank 0's output to the user's stdout (1) or stderr (2).
        save: callback for a piece of a checkpoint, called in the reading thread, so that pieces do not pile
            up.

    Attributes:
        news: received frames, each a kind and its content; kind None: the agent is gone.
        has_started: whether the command has been started.
        said: last lines of the command's stderr.
        clock: offsets of its clocks from this host's.
    """

    def __init__(
        self,
        index: int,
        name: str,
        ranks: int,
        show: Callable[[int, bytes], None],
        save: Callable[[AgentLink, bytes], None],
    ) -> None:
        self.index = index
        self.name = name
        self.ranks = ranks
        self.news: queue.SimpleQueue[tuple[FrameKind | None, bytes]] = queue.SimpleQueue()
        self.has_started = False
        self.said: collections.deque[str] = collections.deque(maxlen=_LINES)
        self._show, self._save = show, save
        self.clock = HostClock()
        self._threads: list[threading.Thread] = []

    def start(self, words: Sequence[str], mask: set[signal.Signals]) -> None:
        """Start the command that leads to the agent. Call it before any thread starts.

        Raises:
            LaunchError: the command is not installed.
        """
        library, launcher = load_prctl(), os.getpid()

        def prepare() -> None:
            bind_to_parent(library, launcher)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # the terminal's keys are for this process, which passes them on
                preexec_fn=prepare,  # noqa: PLW1509 - before any thread
            )
        except OSError as error:
            raise LaunchError(
                f"{words[0]}, by which {self.name} is reached, cannot be started: {error.strerror}; install "
                "it, or name another command by --ssh-command [R114]"
            ) from None
        assert self._process.stdin is not None
        self._sender = Sender(self._process.stdin.fileno())
        self.has_started = True

    def listen(self) -> None:
        """Start the threads that read the agent's output."""
        name = f"ronde agent {self.name}"
        complaints = threading.Thread(target=self._take_complaints, name=name, daemon=True)
        frames = threading.Thread(target=self._take_frames, args=(complaints,), name=name, daemon=True)
        self._threads += [complaints, frames]
        for thread in self._threads:
            thread.start()

    @property
    def code(self) -> int:
        """The exit code of the command; valid once its end has been read."""
        return self._process.returncode or 0

    def send(self, kind: FrameKind, content: bytes | str | dict[str, object] = b"") -> None:
        """Send a frame; if the agent is gone, do nothing.

        Its end is reported by `news`.
        """
        with contextlib.suppress(OSError, ValueError):
            self._sender.send(kind, content)

    def ask_clock(self) -> None:
        """Ask the agent for its clocks; the last answer needed is put into `news`."""
        self.send(FrameKind.CLOCK, self.clock.question())

    def send_many(self, sent: Iterable[tuple[FrameKind, bytes]]) -> None:
        """Send many frames from a thread, without other frames between them.

        They use a duplicated descriptor, which `close` leaves open.
        """
        assert self._process.stdin is not None
        descriptor = os.dup(self._process.stdin.fileno())
        with contextlib.suppress(OSError):
            for kind, content in sent:
                Sender(descriptor).send(kind, content)
        os.close(descriptor)

    def close(self) -> None:
        """Close the connection: the agent then ends its remaining ranks."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self, until: float) -> None:
        """End the command, which may take until this monotonic time to leave."""
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None and not any(thread.is_alive() for thread in self._threads):
                stream.close()

    def _take_frames(self, complaints: threading.Thread) -> None:
        """Put received frames into `news`; the agent's end follows its last error lines."""
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        try:
            if skip_to_magic(source):
                for kind, content in frames(source):
                    if kind in (FrameKind.OUT, FrameKind.ERR):
                        self._pass_on(kind, content)
                    elif kind is FrameKind.CLOCK:
                        self._take_clock(content)
                    elif kind is FrameKind.SAVED:
                        self._save(self, content)
                    else:
                        self.tell(kind, content)
        except FrameError as error:
            self.said.append(f"the agent's connection had {error} in place of a message [R117]")
        self._process.wait()
        complaints.join(_PATIENCE_S)
        self.tell(None, b"")

    def _take_clock(self, content: bytes) -> None:
        was_known = self.clock.is_known
        self.clock.take(unpack(content))
        if not self.clock.is_known:
            self.ask_clock()
        elif not was_known:
            self.tell(FrameKind.CLOCK, b"{}")

    def _take_complaints(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line.decode("utf-8", "replace").rstrip())

    def _pass_on(self, kind: FrameKind, content: bytes) -> None:
        try:
            self._show(1 if kind is FrameKind.OUT else 2, content)
        except OSError:
            self.send(FrameKind.CLOSED, kind.value)

    def tell(self, kind: FrameKind | None, content: bytes) -> None:
        self.news.put((kind, content))
        SignalInbox.wake()
