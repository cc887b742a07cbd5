"""Benchmarks and proofs for developers of ronde: `python -m benchmarks.NAME` in a checkout.

They are outside of the wheel. `ronde bench` has the measurements for users of ronde.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "importable"]

ROOT = Path(__file__).parents[1]
"""The folder of the checkout."""


def importable() -> str:
    """Return a `PYTHONPATH` by which a process that is started can import `benchmarks`."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
