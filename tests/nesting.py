"""Whether the spans of a timeline nest."""

from __future__ import annotations

from typing import Any

__all__ = ["check_nesting"]


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Spans of one thread of one process lie in each other or apart, as the form demands."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            place = threads.setdefault((event["pid"], event["tid"]), [])
            place.append((begin, begin + round(event["dur"] * 1000)))
    for spans in threads.values():
        assert [begin for begin, _ in spans] == sorted(begin for begin, _ in spans)
        open_ends: list[float] = []
        for begin, end in spans:
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)
