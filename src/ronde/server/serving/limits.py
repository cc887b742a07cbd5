"""What a request to a replica may be at most, by whatever protocol."""

from __future__ import annotations

__all__ = ["MOST_BYTES", "MOST_IDS"]

#: Of a request.
MOST_BYTES = 8 << 20
#: Of a look-up.
MOST_IDS = 100_000
