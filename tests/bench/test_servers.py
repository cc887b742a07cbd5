"""Exchanges of a worker and a server, timed."""

from __future__ import annotations

import pytest

from benchmarks.servers import measure as servers
from ronde.bench.reading import read_report


@pytest.mark.soak
def test_a_small_table_of_a_server_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.servers.push_pull.SIZES", {"4 KB": (1024, 3)})
    heard: list[str] = []
    report = servers.measure(ids=3000, dim=4, rounds=2, workers=1, mxnet=None, say=heard.append)
    subjects = ["0.003 M rows x 4, uniform", "0.003 M rows x 4, zipf", "push and pull 4 KB, 1 worker"]
    assert heard == [f"{subject}: done" for subject in subjects]
    assert list(dict.fromkeys(each.labels["subject"] for each in report.results)) == subjects
    assert report.results[0].labels["way"] == "pull and push"
    for each in report.results:
        (figures,) = each.samples.values()
        assert len(figures) == 2
        assert min(figures) > 0
    assert read_report(report.to_json()) == report
