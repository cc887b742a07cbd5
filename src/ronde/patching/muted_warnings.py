"""Mutes Python's warnings, and forgets none of those that were given.

`warnings.catch_warnings` would make Python forget which ones it has shown: each that is shown once would be
shown again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["muted_warnings"]

_IGNORE_ALL = ("ignore", None, Warning, None, 0)


@contextmanager
def muted_warnings() -> Iterator[None]:
    """Inside, no warning is shown or counts as shown; filters that are set there are gone afterwards."""
    module: Any = warnings  # as types have it `filters` cannot be written
    filters, shown_by = module.filters, module.showwarning
    before = list(filters)
    filters.insert(0, _IGNORE_ALL)
    try:
        yield
    finally:
        filters[:] = before
        module.filters, module.showwarning = filters, shown_by
