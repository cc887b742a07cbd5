"""What the ranks of a pool share by fork: torch and the rooms of ronde, imported once."""

from __future__ import annotations

import ronde.runtime.session  # noqa: F401

__all__: list[str] = []
