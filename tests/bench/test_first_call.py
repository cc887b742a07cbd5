"""What the first call of a model costs."""

from __future__ import annotations

import os

import pytest

from benchmarks.first_call.__main__ import FirstCall, measure, row_of
from ronde.errors import UsageError


def _measured() -> FirstCall:
    """Steps of a second; the first one of three, with a call of two and a half; compared ones of 1.5."""
    compared = {0: 3.0, 1: 1.5, 3: 1.5, 7: 1.5, 15: 1.5}
    return FirstCall(
        workload="gpt-12",
        batch_size=32,
        first_call=2.5,
        seconds=tuple(compared.get(step, 1.0) for step in range(17)),
        peaks=(120, *[100] * 16),
        loss=0.5,
    )


def test_figures_are_told_in_steps() -> None:
    found = _measured()
    assert (found.step, found.calls, found.memory) == (1.0, 2.5, 1.2)
    # Two for the first, and half of one for the calls 2, 4, 8, 16, 32, 64 and 128.
    assert found.share == pytest.approx((2 + 7 * 0.5) / 200)


def test_a_row_has_them() -> None:
    samples = row_of(_measured()).samples
    assert (samples["in steps"], samples["first call"], samples["of peaks"]) == ((2.5,), (2500.0,), (1.2,))


@pytest.mark.soak
def test_a_workload_is_run_on_ranks() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    (found,) = measure(["mlp-20k"], ranks=2, plan="ddp", environment=environment)
    assert len(found.seconds) == len(found.peaks) == 16
    assert min(found.seconds) > 0
    assert min(found.peaks) > 0


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(UsageError, match="nothing"):
        measure(["nothing"], ranks=2, plan="ddp", environment=os.environ)
