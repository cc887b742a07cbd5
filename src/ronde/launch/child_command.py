"""Child process of a `ronde` command, shown in this process."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ronde.launch.notebook_line import NotebookLine
from ronde.launch.progress_line import TICK_S, Line, ProgressLine
from ronde.launch.screen import Screen
from ronde.trace.progress import Pulse

__all__ = ["run_launcher", "run_shown"]

# A separate process, because the launcher takes over signals, children and orphans, which must stay with a
# notebook's kernel. It dies with the kernel.
LAUNCHER = "\n".join(
    (
        "import sys",
        "import ronde.launch.linux_process as linux",
        "linux.bind_to_parent(linux.load_prctl(), int(sys.argv[1]))",
        "from ronde.cli import main",
        "main(sys.argv[2:])",
    )
)


def run_launcher(words: Sequence[str], pulse: Path | None = None) -> int:
    """Run a `ronde` command with its output shown here; return its exit code.

    Args:
        pulse: file of the run's progress; None: progress is not shown.
    """
    return run_shown([sys.executable, "-c", LAUNCHER, str(os.getpid()), *words], pulse)


def run_shown(command: Sequence[str], pulse: Path | None = None) -> int:
    """Run a command with its output shown here; return its exit code.

    Raises:
        KeyboardInterrupt: the user has interrupted it, and it has ended.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # this process passes Ctrl-C on, once
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        streams: dict[IO[bytes], Any] = {process.stdout: sys.stdout, process.stderr: sys.stderr}
        # Of a terminal, where the line must not spoil what the script writes.
        screen = None if pulse is None else Screen.of_user(os.environ)
        with _progress(NotebookLine.of_user() or screen, pulse) as tick:
            try:
                _show(streams, tick, screen)
                return process.wait()
            except BaseException:
                # As Ctrl-C at a terminal would: the ranks may save, and a second one ends them.
                _interrupt(process)
                with contextlib.suppress(KeyboardInterrupt):
                    _show(streams, tick, screen)
                    process.wait()
                if process.poll() is None:
                    _interrupt(process)
                raise


@contextlib.contextmanager
def _progress(line: Line | None, pulse: Path | None) -> Iterator[Callable[[], None]]:
    """Show progress, as a context; yields a function to be called now and then."""
    if line is None or pulse is None:
        yield lambda: None
        return
    shown: list[ProgressLine] = []

    def tick() -> None:
        if not shown:
            opened = Pulse.open(pulse)  # made by the launcher
            if opened is None:
                return
            shown.append(ProgressLine(line, opened))
        shown[0].tick(time.monotonic())

    try:
        yield tick
    finally:
        line.wipe()


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)


def _show(streams: dict[IO[bytes], Any], tick: Callable[[], None], screen: Screen | None) -> None:
    """Show the output of both streams as it comes, until they end."""
    with selectors.DefaultSelector() as selector:
        for source, target in streams.items():
            if not source.closed:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                selector.register(source, selectors.EVENT_READ, (target, decoder))
        due = time.monotonic()
        while selector.get_map():
            for key, _ in selector.select(TICK_S):
                target, decoder = key.data
                data = os.read(key.fd, 65536)
                if screen is not None and _is_behind(screen, target):
                    screen.pass_on(target.fileno(), data)
                else:
                    target.write(decoder.decode(data, final=not data))
                    target.flush()
                if not data:
                    selector.unregister(key.fileobj)
            if time.monotonic() >= due:
                due = time.monotonic() + TICK_S
                tick()


def _is_behind(screen: Screen, stream: Any) -> bool:
    """Return whether a stream of Python's is shown on the terminal."""
    try:
        return screen.is_behind(stream.fileno())
    except (OSError, ValueError, AttributeError):  # a test's or a notebook's stream
        return False
