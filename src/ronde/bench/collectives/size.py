"""Numbers of bytes as a user writes and reads them."""

from __future__ import annotations

import re

from ronde.errors import UsageError

__all__ = ["parse_size", "show_size"]

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BY_NAME = {name.lower(): factor for name, factor in _UNITS.items()}


def parse_size(text: str) -> int:
    """Bytes.

    >>> parse_size("4KB"), parse_size("1.5 MiB")
    (4000, 1572864)

    Raises:
        UsageError: for anything else than a number above zero and a unit.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    factor = _BY_NAME.get(found[2]) if found else None
    nbytes = round(float(found[1]) * factor) if found and factor else 0
    if nbytes < 1:
        raise UsageError(
            f"{text!r} is no size; write a number and a unit among {', '.join(_UNITS)}: 4KB [R850]"
        )
    return nbytes


def show_size(nbytes: int) -> str:
    """In the largest unit that leaves the fewest digits.

    >>> show_size(4000), show_size(4096), show_size(1500)
    ('4 KB', '4 KiB', '1.5 KB')
    """
    shown = [f"{nbytes / factor:.10g} {name}" for name, factor in _UNITS.items() if nbytes >= factor]
    return min(reversed(shown), key=len)
