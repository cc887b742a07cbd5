"""Look-ups and updates of embedding tables, timed."""

from __future__ import annotations

import pytest

from ronde.bench.kinds import read_report
from ronde.bench.tables import SPREADS, TableFigures, measure, table
from ronde.errors import UsageError


def test_a_small_table_is_measured_and_its_report_read_again() -> None:
    heard: list[TableFigures] = []
    report = measure(ids=3000, dims=[4], rounds=2, progress=heard.append)
    assert report.results == tuple(heard)
    assert [each.spread for each in heard] == list(SPREADS)
    for each in heard:
        assert each.ids == 3000
        assert len(each.look_ups) == len(each.gathers) == len(each.updates) == len(report.copy) == 2
        assert min(*each.look_ups, *each.gathers, *each.updates, *report.copy) > 0
        assert 1 < each.memory < 3
    assert read_report(report.to_json()) == report
    assert "0.003 M x 4, zipf" in table(report)


def test_something_else_is_no_report() -> None:
    with pytest.raises(UsageError):
        read_report('{"kind": "tables"}')
