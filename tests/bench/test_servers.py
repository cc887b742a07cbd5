"""What a worker exchanges with a server, timed."""

from __future__ import annotations

import pytest

from ronde.bench.kinds import read_report
from ronde.bench.servers import Figures, measure, table
from ronde.errors import UsageError


@pytest.mark.soak
def test_a_small_table_of_a_server_is_measured_and_its_report_read_again() -> None:
    heard: list[Figures] = []
    report = measure(ids=3000, dim=4, rounds=2, progress=heard.append)
    assert report.results == tuple(heard)
    assert [each.what for each in heard] == ["0.003 M rows x 4, uniform", "0.003 M rows x 4, zipf"]
    for each in heard:
        assert next(iter(each.ways)) == "pull and push"
        assert all(len(figures) == 2 and min(figures) > 0 for figures in each.ways.values())
    assert read_report(report.to_json()) == report
    assert "0.003 M rows x 4, zipf" in table(report)


def test_something_else_is_no_report() -> None:
    with pytest.raises(UsageError):
        read_report('{"kind": "servers"}')
