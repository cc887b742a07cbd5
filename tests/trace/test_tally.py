"""What counts as a sample, for each way in which scripts take their batches; pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ronde.trace.counters import Tally
from ronde.trace.progress import Pulse


class Optimizer:
    """Stands for one."""


def samples(events: str, rows: int = 4, seen: int | None = None) -> int:
    """What is counted, of batches of so many `rows` of which a module sees so many others.

    D: a loader delivers; C: a module is called in training, E: in evaluation; B: backward; S, T: two
    optimizers step, (: one of them begins to.
    """
    tally = Tally()
    optimizers = {letter: Optimizer() for letter in "ST" if letter in events}
    for optimizer in optimizers.values():
        tally.know(optimizer)
    does: dict[str, Callable[[], object]] = {
        "D": lambda: tally.deliver(1, rows),
        "C": lambda: tally.train_on(seen or rows),
        "E": tally.evaluate,
        "B": tally.backward,
        "(": tally.begin_step,
        "S": lambda: tally.step(optimizers["S"]),
        "T": lambda: tally.step(optimizers["T"]),
    }
    for event in events.replace(" ", ""):
        does[event]()
    return tally.samples


def test_a_batch_of_a_loader_counts_once() -> None:
    assert samples("DCBS DCBS DCBS") == 12
    assert samples("DCCBS DCCBS") == 8  # two modules
    assert samples("DCB DCBS DCB DCBS") == 16  # accumulation
    assert samples("DCBS CBT DCBS CBT") == 8  # discriminator and generator
    assert samples("DCB CBS CBT DCB CBS CBT") == 8  # the discriminator on real and on made-up rows
    assert samples("DCBBS DCBBS") == 8  # two losses
    assert samples("DDCCBS DDCCBS") == 8  # two loaders in step


def test_without_a_loader_a_batch_begins_after_each_backward() -> None:
    assert samples("CBS CBS") == 8
    assert samples("CCBS CCBS") == 8
    assert samples("CB CBS CB CBS") == 16


def test_evaluation_from_a_loader_does_not_stop_the_count() -> None:
    """Trained from memory, evaluated from a loader."""
    assert samples("CBS CBS DDD CBS CBS CBS") == 20
    assert samples("CBS CBT DEDEDE CBS CBT CBS CBT") == 24


def test_a_batch_that_is_used_again_counts_again() -> None:
    assert samples("D CBS CBS CBS") == 12


def test_a_step_that_computes_its_batch_several_times_counts_it_once() -> None:
    assert samples("(CBCBCBS (CBCBS") == 8
    assert samples("D(CBCBCBS D(CBCBS") == 8


def test_a_batch_on_which_no_module_is_called_counts_with_the_step() -> None:
    assert samples("DS DS") == 8
    assert samples("DS DE DE DS") == 8


def test_a_module_may_see_other_rows_than_the_loader_has_put_together() -> None:
    """The nodes of graphs, say, or both views of each image."""
    assert samples("DCBS DCBS", seen=60) == 8
    assert samples("D CBS CBS", seen=60) == 8  # the same batch once more
    assert samples("DE CBS CBS", seen=60) == 120  # trained from memory
    assert samples("DDCCBS", seen=60) == 4


def test_rates_leave_the_first_step_out() -> None:
    tally = Tally()
    waited = 5
    tally.waited = lambda: waited
    tally.begin()
    tally.train_on(8)
    tally.deliver(1_000)
    waited = 7
    tally.step()
    assert tally.pace().steps == 1  # all of it, the first step included
    assert (tally.pace().data, tally.pace().waited) == (1e-6, 2e-9)
    tally.backward()
    tally.train_on(8)
    tally.deliver(30)
    waited = 11
    tally.step()
    pace = tally.pace()
    assert (pace.steps, pace.samples, pace.data, pace.waited) == (1, 8, 30e-9, 4e-9)
    assert pace.samples_per_second == 8 * pace.steps_per_second


def test_the_launcher_sees_what_the_main_rank_counts(tmp_path: Path) -> None:
    path = tmp_path / "pulse"
    assert Pulse.open(path) is None
    watched = Pulse.create(path)
    assert watched is not None
    shown = Pulse.open(path)
    assert shown is not None
    tally = Tally(shown)
    for _ in range(3):
        tally.deliver(10)
        tally.train_on(16)
        tally.step()
    shown.attended = True
    assert (watched.steps, watched.samples, watched.attended, watched.debugged) == (3, 48, True, False)
    shown.debugged, shown.attended = True, False
    assert (watched.attended, watched.debugged) == (False, True)
    assert tally.data_ns == 30
    for pulse in (watched, shown):
        pulse.close()


def test_a_place_that_cannot_be_written_has_no_pulse(tmp_path: Path) -> None:
    assert Pulse.create(tmp_path / "missing" / "pulse") is None


def test_who_watches_a_resumed_run_hears_the_script_s_own_count() -> None:
    seen: list[int] = []

    class Watcher:
        def step(self, steps: int) -> None:
            seen.append(steps)

    tally = Tally()
    tally.vitals = Watcher()  # type: ignore[assignment]
    optimizer = Optimizer()
    tally.know(optimizer)
    tally.step(optimizer)
    tally.go_on_from(40)
    tally.step(optimizer)
    assert (seen, tally.steps) == ([1, 40, 41], 2)
