"""Spelling of the parameters that `tensor=N` cuts, where the model's structure does not decide."""

from __future__ import annotations

import re

__all__ = ["Cuts", "cuts_by_pattern"]

_WAY = re.compile(r"replicated|[0-9](/[1-9][0-9]?)?")


class Cuts:
    """`PATTERN:WAY` items joined by `+`; the first pattern that matches a parameter's name decides.

    A way is the dimension that is cut, `0/3` for three matrices stacked along dimension 0, or `replicated`.
    """

    @property
    def expected(self) -> str:
        return "PATTERN:WAY joined by +, a WAY being a dimension (0, 1, 0/3) or replicated"

    def read(self, text: str) -> str:
        cuts_by_pattern(text)
        return text

    def write(self, value: str) -> str:
        return value

    def holds(self, value: object) -> bool:
        try:
            return isinstance(value, str) and bool(cuts_by_pattern(value))
        except ValueError:
            return False


def cuts_by_pattern(text: str | None) -> dict[str, str]:
    """Return the ways by pattern, in their order; raises `ValueError` for a malformed piece.

    >>> cuts_by_pattern("*.fc1.weight:0+*.norm.*:replicated")
    {'*.fc1.weight': '0', '*.norm.*': 'replicated'}
    """
    found: dict[str, str] = {}
    for piece in text.split("+") if text is not None else ():
        pattern, colon, way = piece.rpartition(":")
        if not (colon and pattern and _WAY.fullmatch(way)):
            raise ValueError(piece)
        found.setdefault(pattern, way)
    return found
