"""Phases, and what is put together of them at each step."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ronde.trace import phases as phases_module
from ronde.trace import recorder as recorder_module
from ronde.trace.events import read_events, write_event
from ronde.trace.phases import Phase, Phases
from ronde.trace.recorder import NO_TRAFFIC, StepRange, TraceRecorder, Travelled
from ronde.trace.spans import SpanFile, read_spans, spans_path
from ronde.trace.step_file import StepFile, StepsOfRank, read_steps, steps_path


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        monkeypatch.setattr(phases_module, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(recorder_module, "perf_counter_ns", lambda: self.now)

    def passes(self, ns: int) -> None:
        self.now += ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Others:
    """What a rank exchanges, by hand."""

    def __init__(self) -> None:
        self.waited = 0
        self.total = Travelled()
        self.hear: Callable[[str, int, int, int], object] | None = None

    def waited_ns(self) -> int:
        return self.waited

    def travelled(self) -> Travelled:
        return self.total

    def listen(self, hear: Callable[[str, int, int, int], object] | None) -> None:
        self.hear = hear


def test_time_is_divided_and_waiting_is_no_phases(clock: Clock) -> None:
    others, shown = Others(), []
    phases = Phases(others.waited_ns, shown.append)
    clock.passes(10)
    before = phases.enter(Phase.FORWARD)
    clock.passes(30)
    others.waited += 12
    phases.enter(before)
    clock.passes(5)
    phases.enter(Phase.OTHER)
    assert (phases.spent[Phase.OTHER], phases.spent[Phase.FORWARD]) == (15, 18)
    assert shown == [Phase.FORWARD, Phase.OTHER, Phase.OTHER]


def test_another_thread_and_a_fork_divide_nothing(clock: Clock) -> None:
    phases = Phases(lambda: 0, lambda phase: None)
    thread = threading.Thread(target=lambda: phases.enter(Phase.DATA))
    thread.start()
    thread.join()
    assert phases.current == Phase.OTHER
    child = os.fork()
    if not child:
        phases.enter(Phase.DATA)
        os._exit(phases.current)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == Phase.OTHER


class Rank:
    def __init__(self, folder: Path, traced: str = "", *, shortest_ns: int = 0) -> None:
        self.folder, self.others = folder, Others()
        file = StepFile(steps_path(folder, 0), rank=0, world_size=1, process=1, clocks=(0, 0), host="here")
        spans = (SpanFile(spans_path(folder, 0)), StepRange.parse(traced)) if traced else None
        self.recorder = TraceRecorder(file, self.others, lambda: (4096, 0), spans, shortest_ns=shortest_ns)

    def read(self) -> StepsOfRank:
        found = read_steps(steps_path(self.folder, 0))
        assert found is not None
        return found


def test_a_step_is_written_as_it_ends(tmp_path: Path, clock: Clock) -> None:
    rank = Rank(tmp_path)
    recorder, phases, others = rank.recorder, rank.recorder.phases, rank.others
    clock.passes(100)
    recorder.begin()
    for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        phases.enter(phase)
        clock.passes(10 * phase)
    others.waited, others.total = 4, Travelled((64, 0, 0, 0), 3, 2, 9)
    recorder.stepped(1, 32)
    clock.passes(6)
    recorder.close()
    recorder.close()
    first, tail = rank.read().course
    assert (first.data, first.forward, first.backward, first.optimizer) == (20, 30, 40, 6)
    assert (first.ended - first.begun, first.waited, first.other, first.samples) == (100, 4, 0, 32)
    assert (first.sent, first.collectives, first.last, first.late) == ((64, 0, 0, 0), 3, 2, 9)
    assert (first.resident, first.losses) == (4096, 0)
    assert (tail.steps, tail.other) == (0, 6)


def test_steps_before_a_checkpoint_are_in_no_record(tmp_path: Path, clock: Clock) -> None:
    rank = Rank(tmp_path, shortest_ns=10)
    rank.recorder.begin()
    rank.recorder.go_on_from(40)
    for step in (41, 42):
        clock.passes(5)
        rank.recorder.stepped(step, 32)
    rank.recorder.close()
    records = [each for each in rank.read().course if each.steps]
    assert [(each.step, each.steps) for each in records] == [(41, 1), (42, 1)]


def test_a_loss_belongs_to_the_step_that_is_nearest(tmp_path: Path, clock: Clock) -> None:
    rank = Rank(tmp_path)
    recorder = rank.recorder
    recorder.called()
    recorder.read(1.0)  # between forward and the step
    clock.passes(5)
    recorder.stepped(1, 0)
    recorder.called()
    clock.passes(5)
    recorder.stepped(2, 0)
    recorder.read(2.0)  # behind the step
    recorder.called()
    recorder.read(3.0)
    recorder.read(4.0)  # of the third step, twice
    clock.passes(5)
    recorder.stepped(3, 0)
    assert [(each.loss, each.losses) for each in rank.read().recent] == [(1.0, 1), (2.0, 1), (3.5, 2)]


def test_short_steps_share_a_record(tmp_path: Path, clock: Clock) -> None:
    rank = Rank(tmp_path, shortest_ns=25)
    recorder, phases = rank.recorder, rank.recorder.phases
    for step in range(1, 6):
        phases.enter(Phase.FORWARD)
        clock.passes(8)
        phases.enter(Phase.OPTIMIZER)
        clock.passes(2)
        recorder.called()
        recorder.read(float(step))
        rank.others.total = Travelled((64 * step, 0, 0, 0), step, 0, 0)
        recorder.stepped(step, 32 * step)
    recorder.read(6.0)  # of the fifth step, whose record is not written yet
    assert rank.read().steps == 5
    clock.passes(100)
    recorder.close()
    first, three, one, tail = rank.read().course
    counts = [(each.step, each.steps, each.samples) for each in (first, three, one, tail)]
    assert counts == [(1, 1, 32), (4, 3, 96), (5, 1, 32), (5, 0, 0)]
    assert (three.forward, three.optimizer, three.ended - three.begun) == (24, 6, 30)
    assert (one.forward, one.optimizer, one.ended - one.begun, one.sent[0]) == (8, 2, 10, 64)
    assert [(each.loss, each.losses) for each in (first, three, one)] == [(1.0, 1), (3.0, 3), (5.5, 2)]
    assert (tail.ended - tail.begun, tail.other) == (100, 100)


def test_one_rank_measures_the_first_of_short_steps(tmp_path: Path, clock: Clock) -> None:
    file = StepFile(steps_path(tmp_path, 0), rank=0, world_size=1, process=1, clocks=(0, 0), host="here")
    recorder = TraceRecorder(file, NO_TRAFFIC, lambda: (4096, 0), shortest_ns=70)
    phases = recorder.phases

    def step(number: int) -> None:
        for phase, ns in ((Phase.FORWARD, 6), (Phase.BACKWARD, 9), (Phase.OPTIMIZER, 3)):
            if not phases.paused():
                phases.enter(phase)
            clock.passes(ns)
        recorder.stepped(number, number)
        clock.passes(2)  # the script's own

    for number in range(1, 4):
        step(number)
    assert phases.paused()
    clock.passes(130)  # beyond the end of the pause
    step(4)
    step(5)
    clock.passes(1_000)  # what follows is not like the step
    recorder.close()
    found = read_steps(steps_path(tmp_path, 0))
    assert found is not None
    assert (found.steps, [(each.step, each.steps) for each in found.course]) == (
        5,
        [(1, 1), (4, 3), (5, 1), (5, 0)],
    )
    first, short, last, tail = found.course
    assert (first.forward, first.backward, first.optimizer, first.ended - first.begun) == (6, 9, 3, 18)
    # The second and the fourth are measured, 38; a pause of 152 counts as 70 between them.
    assert (short.forward, short.backward, short.optimizer) == (34, 51, 17)
    assert short.ended - short.begun == 190
    assert (last.forward, last.backward, last.optimizer, last.ended - last.begun) == (6, 9, 3, 20)
    assert (tail.other, tail.ended - tail.begun) == (1_002, 1_002)


def test_what_comes_after_the_end_is_nobodys(tmp_path: Path, clock: Clock) -> None:
    """Exit handlers of a script may go on training."""
    rank = Rank(tmp_path)
    clock.passes(1)
    rank.recorder.close()
    rank.recorder.phases.enter(Phase.FORWARD)
    rank.recorder.read(1.0)
    rank.recorder.stepped(1, 1)
    assert rank.read().steps == 0


def test_spans_are_those_of_the_steps_that_were_asked_for(tmp_path: Path, clock: Clock) -> None:
    rank = Rank(tmp_path, "2:3")
    for step in range(1, 5):
        rank.recorder.phases.enter(Phase.FORWARD)
        clock.passes(10)
        rank.recorder.phases.enter(Phase.OTHER)
        if rank.others.hear is not None:
            rank.others.hear("all_reduce", clock.now - 5, clock.now, 64)
        clock.passes(1)
        rank.recorder.stepped(step, 0)
    rank.recorder.close()
    spans = list(read_spans(spans_path(tmp_path, 0)))
    assert {span.number for span in spans} == {2, 3}
    assert [span.number for span in spans if span.name == "step"] == [2, 3]
    assert [span.nbytes for span in spans if span.name == "all_reduce"] == [64, 64]
    steps = {span.number: span for span in spans if span.name == "step"}
    assert all(steps[span.number].begin <= span.begin <= span.end <= steps[span.number].end for span in spans)


@pytest.mark.parametrize("text", ["", "5", "0:3", "4:3", "a:b", "1:2:3", "-1:2"])
def test_what_is_no_range_of_steps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        StepRange.parse(text)


def test_a_range_of_steps_has_both_ends(tmp_path: Path) -> None:
    steps = StepRange.parse("2:4")
    assert [step in steps for step in range(1, 6)] == [False, True, True, True, False]


def test_events_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []
    write_event(tmp_path, "start", "train.py", rank=0, plan="ddp")
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('no json\n{"time": 1}\n[3]\n{"time": 0.5, "kind": "death", "text": "x", "rank": 1}\n')
    early, late = read_events(tmp_path)
    assert (early.kind, early.rank, early.time) == ("death", 1, 0.5)
    assert (late.kind, late.text, late.rank, dict(late.more)) == ("start", "train.py", 0, {"plan": "ddp"})
    assert math.isfinite(late.time)
