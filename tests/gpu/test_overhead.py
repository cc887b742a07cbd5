"""`ronde bench overhead` on a CUDA device."""

from __future__ import annotations

import os

import pytest

from ronde.bench import overhead


@pytest.mark.gpu
def test_overhead_can_be_measured_on_cuda() -> None:
    report = overhead.compare(
        ["host", "tiny", "mlp-512", "start-up"],
        device="cuda",
        rounds=1,
        steps=20,
        environment=os.environ,
        progress=lambda *_: None,
    )
    assert all(each.samples["ronde"].device != "cpu" for result in report.results for each in result.rounds)
