"""Look-ups and updates of embedding tables, timed."""

from __future__ import annotations

from benchmarks.servers.ids import SPREADS
from benchmarks.tables import QUANTITIES, measure


def test_a_small_table_is_measured() -> None:
    report = measure(ids=3000, dims=[4], rounds=2)
    assert [each.labels for each in report.results] == [
        {"table": "0.003 M x 4", "ids": ids} for ids in SPREADS
    ]
    for each in report.results:
        assert each.samples.keys() == QUANTITIES.keys()
        for name in ("look-up", "gather", "update"):
            assert len(each.samples[name]) == 2
            assert min(each.samples[name]) > 0
        assert 1 < each.samples["memory"][0] < 3
