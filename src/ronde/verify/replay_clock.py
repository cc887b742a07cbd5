"""Records clock times and seeds that a run reads, and replays them in another.

A script that is named or seeded by the time gives another answer in every run of plain python, so there would
be nothing to compare with. The answers of the plain run are therefore replayed in the other runs.
"""

from __future__ import annotations

import collections
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ronde.patching.patches import Patches
from ronde.process.clock import Circumstances
from ronde.verify.record import Writer

__all__ = ["Chances", "save_chances"]


def save_chances(path: Path, circumstances: Iterable[tuple[str, Any]]) -> None:
    path.write_text(json.dumps(list(circumstances)))


class Chances:
    """Records clock times and seeds; replays recorded ones, each name in its order."""

    def __init__(self, writer: Writer, replay: str) -> None:
        self._writer = writer
        self._known: dict[str, collections.deque[Any]] = collections.defaultdict(collections.deque)
        if replay:
            for name, value in json.loads(Path(replay).read_text()):
                self._known[name].append(value)

    def answer(self, name: str, value: Any) -> Any:
        """Return the next recorded value of `name`, or `value` once they are used up."""
        known = self._known[name]
        answer = known.popleft() if known else value
        self._writer.event("circumstance", name=name, value=answer)
        return answer

    def install(self) -> None:
        """Patch the clock and seeds of plain python, where no session does so."""
        process = os.getpid()

        def in_step() -> bool:
            return threading.current_thread() is threading.main_thread() and os.getpid() == process

        Circumstances(self.answer, in_step).install(Patches())
