"""Words about runs of a proof that take long, while they run."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ronde.verify.runs import Start, Starter

__all__ = ["told_of", "waits_in", "words_on"]

LOOK_EVERY_S = 0.5
# Later words come after twice the time each.
FIRST_S = 10.0
_STEP = '{"kind": "step"'
_WAIT = re.compile(
    r"^ronde: note\[R200\]: (?P<what>ranks have waited for \S+ s; the run is ended after \S+ s of this).*"
    r"(?P<places>(?:\n  .*)+)",
    re.MULTILINE,
)


def told_of(starter: Starter, say: Callable[[str], object], first: float = FIRST_S) -> Starter:
    """Return a starter that tells of long runs, and of ranks that wait long.

    Args:
        first: seconds of a run before the first words.
    """

    def run(start: Start) -> int:
        with _watched(start, say, first):
            return starter(start)

    return run


@contextmanager
def _watched(start: Start, say: Callable[[str], object], first: float) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        begun, due, waits = time.monotonic(), first, 0
        while not ended.wait(min(LOOK_EVERY_S, first)):
            found = waits_in(_text(start.place / "stderr"))
            for each in found[waits:]:
                say(each)
            waits = len(found)
            if (seconds := time.monotonic() - begun) >= due:
                say(words_on(start, seconds))
                due *= 2

    thread = threading.Thread(target=watch, name="ronde long runs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def words_on(start: Start, seconds: float) -> str:
    """Describe a run after some seconds: where it runs, and its optimizer steps."""
    job = start.job
    where = "in plain python" if start.ranks is None else f"on {start.ranks} ranks"
    steps = _text(start.place / "record" / "rank-0.events").count(_STEP)
    return f"{job.script} has run {where} for {seconds:.0f} s, {steps} of {job.steps} optimizer steps"


def waits_in(stderr: str) -> list[str]:
    """Return a launcher's words about ranks that wait, without its options.

    >>> waits_in(
    ...     "ronde: note[R200]: ranks have waited for 8 s; the run is ended after 60 s of this (--timeout)\\n"
    ...     "  rank 0 waits\\nhello\\n"
    ... )
    ['ranks have waited for 8 s; the run is ended after 60 s of this\\n  rank 0 waits [R200]']
    """
    return [f"{each['what']}{each['places']} [R200]" for each in _WAIT.finditer(stderr)]


def _text(path: Path) -> str:
    """Return the text of a file that another process writes; "" before it is there."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
