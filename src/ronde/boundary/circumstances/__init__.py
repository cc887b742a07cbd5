"""What a script finds around it: the clock, seeds, threads and processes of its own."""

from __future__ import annotations
