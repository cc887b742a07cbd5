"""`make rules`: every operation that it times has a rule that cuts its result."""

from __future__ import annotations

from typing import Any

from rule_cost import added


def test_each_rule_is_timed(ranks: Any) -> None:
    for found in ranks(2, added, 2, 3):
        assert len(found) == 20
        assert all(us.low <= us.median <= us.high for us in found.values())
