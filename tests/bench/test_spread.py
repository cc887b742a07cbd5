from __future__ import annotations

import numpy
import pytest

from ronde.bench.spread import Spread


@pytest.mark.parametrize("count", range(1, 12))
def test_quartiles_are_numpys(count: int) -> None:
    values = numpy.random.default_rng(count).normal(size=count)
    spread = Spread.of(values)
    expected = numpy.quantile(values, [0.25, 0.5, 0.75])
    assert [spread.low, spread.median, spread.high] == pytest.approx(list(expected))


def test_order_does_not_matter() -> None:
    assert Spread.of([3, 1, 2]) == Spread.of([1, 2, 3]) == Spread(low=1.5, median=2.0, high=2.5)
