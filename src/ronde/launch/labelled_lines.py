"""Lines of ranks' output, each with its rank in front."""

from __future__ import annotations

from ronde.launch.write_all import write_all

__all__ = ["LabelledLines"]


class LabelledLines:
    """Passes whole lines on, each in one write."""

    def __init__(self, label: str, sink: int) -> None:
        self._label, self._sink = label.encode(), sink
        self._begun = b""

    def add(self, data: bytes) -> None:
        """Add output of the rank; an unfinished line is kept."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        if lines:
            write_all(self._sink, b"".join(self._label + line + b"\n" for line in lines))

    def end(self) -> None:
        """Pass an unfinished last line on, too."""
        if self._begun:
            self.add(b"\n")
