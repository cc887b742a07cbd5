"""Operations of Horovod's interface, timed beside others."""

from __future__ import annotations

import os

import pytest

from ronde.bench.horovod import measure, table
from ronde.bench.kinds import read_report


@pytest.mark.soak
def test_all_ways_are_measured_and_the_report_is_read_again() -> None:
    report = measure(ranks=2, rounds=2, environment=os.environ, floats=10_000)
    ways = {each.what: list(each.ways) for each in report.results}
    assert ways == {
        "4 KB": ["horovod", "ronde", "Gloo"],
        "0 MB": ["horovod", "ronde", "Gloo"],
        "160 tensors of 64 KB": ["horovod, all at once", "Gloo, one by one"],
        "shutdown and init": ["horovod"],
    }
    for each in report.results:
        assert all(len(figures) == 2 and min(figures) > 0 for figures in each.ways.values())
    assert read_report(report.to_json()) == report
    assert "Gloo, one by one" in table(report)
