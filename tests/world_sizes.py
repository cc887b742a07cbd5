"""How many ranks a test runs on: three cut a batch unevenly, two differ from that by a number."""

from __future__ import annotations

import pytest

WORLD_SIZES = [pytest.param(2, marks=pytest.mark.soak), 3]
