"""`ronde bench overhead` on a CUDA device."""

from __future__ import annotations

import os

import pytest

from ronde.bench import steps


@pytest.mark.gpu
def test_overhead_can_be_measured_on_cuda() -> None:
    report = steps.compare_overhead(
        ["host", "tiny", "mlp-512", "start-up"],
        device="cuda",
        rounds=1,
        steps=20,
        environment=os.environ,
        progress=lambda _: None,
    )
    assert report.settings["device"] == "cuda"  # runs on another device are not compared
    assert len(report.results) == 4
