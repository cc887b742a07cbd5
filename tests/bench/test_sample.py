from __future__ import annotations

import json

import pytest

from ronde.bench.sample import parse
from ronde.errors import BenchError

LINE = {
    "workload": "mlp",
    "batch_size": 64,
    "samples_per_second": 640.0,
    "steps": 20,
    "seconds": 2.0,
    "loss": 0.5,
    "losses": [],
    "threads": 1,
    "torch": "2.13.0",
    "device": "cpu",
}


def printed(**changed: object) -> str:
    return f"step 0 loss 2.3\nbench-line {json.dumps({**LINE, **changed})}\nbye\n"


def test_the_line_is_found_among_others() -> None:
    read = parse(printed(), wall_seconds=5.0)
    assert (read.workload, read.samples_per_second, read.wall_seconds) == ("mlp", 640.0, 5.0)
    assert read.step_microseconds == pytest.approx(100_000)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("step 0 loss 2.3\n", "this one printed 0"),
        (printed() * 2, "this one printed 2"),
        ("bench-line {broken\n", "cannot read"),
        ('bench-line {"workload": "mlp"}\n', "cannot read"),
        (printed(steps=0), "timed nothing"),
        (printed(seconds=0.0), "timed nothing"),
        (printed(samples_per_second=float("nan")), "timed nothing"),
    ],
)
def test_what_is_no_measurement_is_refused(output: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse(output, wall_seconds=1.0)
