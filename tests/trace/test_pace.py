"""Figures of a run agree: what the summary counts and what the report counts is one definition."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ronde.report.figures import reduced
from ronde.report.step_arrays import Records, of_records
from ronde.trace.counters import Tally
from ronde.trace.pace import Pace
from ronde.trace.recorder import TraceRecorder, Travelled
from ronde.trace.step_file import StepFile, StepRecord, read_steps

FIRST = StepRecord(1, 1, 0, 9_000, 10, 0, 0, 0, 8_000, 4, 0, 0, (0, 0, 0, 0), 0, 0, 0)
SECOND = dataclasses.replace(FIRST, step=2, begun=9_000, ended=9_100, data=20, waited=43)
TAIL = dataclasses.replace(FIRST, step=2, steps=0, begun=9_100, ended=20_000, waited=500, samples=0)


def pace_of(records: Records) -> Pace | None:
    return reduced(records, records[:0], np.array([0, 1])).pace


def test_the_first_step_and_the_time_after_the_last_are_left_out() -> None:
    pace = pace_of(of_records(FIRST, SECOND, TAIL))
    assert pace is not None
    assert (pace.steps, pace.samples) == (1, 4)
    assert pace.communication_share == pytest.approx(0.43)
    assert pace.data_share == pytest.approx(0.2)
    assert pace.steps_per_second == pytest.approx(1e7)
    assert pace_of(of_records()) is None


class Exchange:
    """What a rank exchanges, with a wait that the test says."""

    waited = 0

    def waited_ns(self) -> int:
        return self.waited

    def travelled(self) -> Travelled:
        return Travelled()

    def listen(self, hear: Callable[[str, int, int, int], object] | None) -> None:
        pass


def test_the_summary_and_the_report_count_alike(tmp_path: Path) -> None:
    clocks = (time.time_ns(), time.perf_counter_ns())
    path = tmp_path / "rank-0.steps"
    file = StepFile(path, rank=0, world_size=2, process=os.getpid(), clocks=clocks, host="here")
    exchange, tally = Exchange(), Tally()
    tally.recorder = TraceRecorder(file, exchange, lambda: (0, 0), shortest_ns=0)
    tally.waited = exchange.waited_ns
    tally.begin()
    for waited in (700_000, 50_000, 90_000, 10_000):
        exchange.waited += waited
        tally.train_on(8)
        tally.deliver(0)
        tally.step()
    exchange.waited += 5_000_000  # as the script ends
    tally.recorder.close()
    written = read_steps(path)
    assert written is not None
    told, shown = tally.pace(), pace_of(of_records(*written.course))
    assert shown is not None
    assert (told.steps, told.samples) == (shown.steps, shown.samples) == (3, 24)
    assert (told.waited, shown.waited) == (pytest.approx(150e-6), pytest.approx(150e-6))
    assert told.seconds == pytest.approx(shown.seconds, abs=1e-3)
