"""Limits of a request to a replica, for every protocol."""

from __future__ import annotations

__all__ = ["MOST_BYTES", "MOST_IDS"]

#: Bytes per request.
MOST_BYTES = 8 << 20
#: Ids per look-up.
MOST_IDS = 100_000
