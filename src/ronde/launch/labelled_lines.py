"""Lines of a rank's output, each with the rank before it, so that those of several can be told apart."""

from __future__ import annotations

from ronde.launch.write_all import write_all

__all__ = ["LabelledLines"]


class LabelledLines:
    """Passes whole lines on, each in one write."""

    def __init__(self, label: str, sink: int) -> None:
        self._label, self._sink = label.encode(), sink
        self._begun = b""

    def add(self, data: bytes) -> None:
        """Some bytes of the rank's output; what ends no line is kept."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        if lines:
            write_all(self._sink, b"".join(self._label + line + b"\n" for line in lines))

    def end(self) -> None:
        """There is no more: a last line without an end is passed on too."""
        if self._begun:
            self.add(b"\n")
