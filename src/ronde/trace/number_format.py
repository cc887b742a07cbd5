"""Formats numbers for people."""

from __future__ import annotations

import math

__all__ = ["show_duration", "show_number", "show_share"]


def show_number(value: float) -> str:
    """Format a number with three significant digits.

    >>> show_number(12345.6), show_number(3.14159), show_number(0.00271), show_number(1.5e9)
    ('12,346', '3.14', '0.00271', '1.50e+09')
    """
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        return f"{value:.2e}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show_duration(seconds: float) -> str:
    """Format a duration in its one or two largest units.

    >>> show_duration(0.00213), show_duration(12.34), show_duration(3723), show_duration(600000)
    ('2.13 ms', '12.3 s', '1 h 2 min', '6 d 22 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def show_share(share: float) -> str:
    """Format a share in per cent, small ones with one decimal.

    >>> show_share(0.123), show_share(0.004), show_share(0)
    ('12%', '0.4%', '0%')
    """
    return f"{share:.1%}" if 0 < share < 0.0095 else f"{share:.0%}"
