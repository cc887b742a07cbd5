"""Optimizers for large batches that torch does not have: `LARS` and `LAMB`, for any plan."""

from __future__ import annotations

from ronde.optim.lamb import LAMB
from ronde.optim.lars import LARS

__all__ = ["LAMB", "LARS"]
