"""Operations of Horovod's interface, timed beside others."""

from __future__ import annotations

import os

import pytest

from benchmarks.horovod.measure import measure, rows_of


def test_a_way_is_compared_with_horovods_in_its_round() -> None:
    rows = rows_of("4 KB", {"horovod": [1.0, 2.0], "Gloo": [3.0, 2.0]})
    assert [row.samples["times horovod's"] for row in rows] == [(1.0, 1.0), (3.0, 1.0)]


@pytest.mark.soak
def test_all_ways_are_measured() -> None:
    report = measure(ranks=2, rounds=2, environment=os.environ, floats=10_000)
    assert [tuple(each.labels.values()) for each in report.results] == [
        *(("4 KB", way) for way in ("horovod", "ronde", "Gloo")),
        *(("0 MB", way) for way in ("horovod", "ronde", "Gloo")),
        ("160 tensors of 64 KB", "horovod, all at once"),
        ("160 tensors of 64 KB", "Gloo, one by one"),
        ("shutdown and init", "horovod"),
    ]
    for each in report.results:
        assert len(each.samples["time"]) == 2
        assert min(each.samples["time"]) > 0
