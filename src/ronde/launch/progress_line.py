"""A live line on the user's terminal: steps done, and their rate."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from ronde.launch.screen import Screen
from ronde.trace.progress import Pulse

__all__ = ["TICK_S", "Line", "ProgressLine", "shown_progress"]

TICK_S = 0.5
# A script that prints often needs no progress line.
SILENCE_S = 3.0
# Rates are those of the last seconds.
WINDOW_S = 10.0


class Line(Protocol):
    """A place for one line, such as the end of a terminal."""

    def show(self, text: str) -> None:
        """Draw the line."""
        ...

    def wipe(self) -> None:
        """Remove the line."""
        ...

    def silent_since(self) -> float:
        """Return the time of the script's last output, by the monotonic clock."""
        ...


class ProgressLine:
    """Progress line, redrawn while the script is silent and makes steps.

    It is not shown while a user is at a prompt or in a debugger. It is redrawn only when steps were taken, so
    that it does not wipe what is typed to a script that waits for a line.
    """

    def __init__(self, screen: Line, pulse: Pulse) -> None:
        self._screen = screen
        self._pulse = pulse
        self._begun = time.monotonic()
        # Times at which new steps were seen; the first comes after imports, loading and a first batch.
        self._seen: collections.deque[tuple[float, int, int]] = collections.deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ronde progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Remove the line for good."""
        self._stopped.set()
        self._thread.join(1.0)  # a terminal that accepts no bytes may block it
        self._screen.wipe()

    def tick(self, now: float) -> None:
        """Check the steps, and redraw the line if there are new ones."""
        steps, samples = self._pulse.steps, self._pulse.samples
        if self._pulse.attended:
            self._screen.wipe()
            return
        if steps == (self._seen[-1][1] if self._seen else 0):
            return
        while len(self._seen) > 1 and now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        self._seen.append((now, steps, samples))
        if now - self._screen.silent_since() >= SILENCE_S:
            self._screen.show(self._text(now))

    def _text(self, now: float) -> str:
        since, steps_then, samples_then = self._seen[0]
        _, steps, samples = self._seen[-1]
        words = [f"ronde: step {steps}"]
        if len(self._seen) > 1:  # else the speed is unknown
            seconds = max(now - since, 1e-9)
            words.append(f"{_short((steps - steps_then) / seconds)} steps/s")
            if samples:
                words.append(f"{_short((samples - samples_then) / seconds)} samples/s")
        minutes, seconds = divmod(int(now - self._begun), 60)
        hours, minutes = divmod(minutes, 60)
        elapsed = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return ", ".join([*words, elapsed])

    def _run(self) -> None:
        while not self._stopped.wait(TICK_S):
            self.tick(time.monotonic())


def _short(rate: float) -> str:
    """Format a rate with at least two digits."""
    if rate >= 100:
        return f"{rate:.0f}"
    return f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"


@contextlib.contextmanager
def shown_progress(screen: Screen | None, pulse: Pulse | None) -> Iterator[None]:
    """Show progress on a terminal, as a context; without one it is a no-op."""
    line = ProgressLine(screen, pulse) if screen is not None and pulse is not None else None
    if line is not None:
        line.start()
    try:
        yield
    finally:
        if line is not None:
            line.stop()
