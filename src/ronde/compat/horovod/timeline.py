"""`HOROVOD_TIMELINE`: a Chrome trace of rank 0's exchanges, readable while it grows."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

__all__ = ["HorovodTimeline"]


class HorovodTimeline:
    """A trace file with one event per tensor and exchange.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        self._file.write("[\n")
        self._lock = threading.Lock()
        self._first: float | None = None

    def add(self, kind: str, names: Sequence[str], begin: float, end: float) -> None:
        """Add the exchange of these tensors; `begin` and `end` are in seconds."""
        with self._lock:
            if self._first is None:
                self._first = begin
            for name in names:
                event = {
                    "ph": "X", "name": kind.upper(), "cat": kind, "pid": name, "tid": 0,
                    "ts": (begin - self._first) * 1e6, "dur": (end - begin) * 1e6,
                    "args": {"together": len(names)},
                }  # fmt: skip
                self._file.write(json.dumps(event) + ",\n")
            self._file.flush()

    def close(self) -> None:
        """Complete the JSON document, and close the file."""
        with self._lock:
            self._file.write('{"ph": "M", "name": "end"}\n]\n')
            self._file.close()
