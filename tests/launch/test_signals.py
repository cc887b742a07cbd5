"""Ctrl-C, SIGTERM and the sudden end of the launcher."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from .conftest import Experiment, gone, wait_until

WAITING = """
note(f"rank{rank}")
wait_for_ever()
"""


def _pids(experiment: Experiment, ranks: int) -> list[int]:
    return [experiment.pid(f"rank{rank}") for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)],
)
def test_a_signal_to_the_launcher_reaches_a_script_that_does_not_handle_it(
    experiment: Any, ranks: int, number: int, code: int
) -> None:
    process = experiment.start(WAITING, ranks=ranks)
    pids = _pids(experiment, ranks)
    process.send_signal(number)
    result = experiment.finish(process)
    assert result.code == code
    assert all(gone(pid) for pid in pids)
    if number == signal.SIGINT:  # whoever pressed Ctrl-C knows it
        assert "ronde:" not in result.err
    else:
        assert signal.Signals(number).name in result.err


def test_a_script_that_handles_sigterm_decides_its_own_code(experiment: Any) -> None:
    process = experiment.start(
        """
        def save(number, frame):
            time.sleep(0.3)
            print("saved", flush=True)
            sys.exit(5)
        signal.signal(signal.SIGTERM, save)
        note(f"rank{rank}")
        wait_for_ever()
        """
    )
    _pids(experiment, 2)
    process.terminate()
    result = experiment.finish(process)
    assert (result.code, result.out, result.err) == (5, b"saved\n", "")


def test_where_a_signal_takes_the_ranks_apart_the_user_is_told(experiment: Any) -> None:
    process = experiment.start(
        """
        def leave(number, frame):
            if rank == 1:
                sys.exit(3)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            wait_for_end_of("rank1")
            raise LookupError("peer")
        signal.signal(signal.SIGTERM, leave)
        note(f"rank{rank}")
        wait_for_ever()
        """
    )
    _pids(experiment, 2)
    process.terminate()
    result = experiment.finish(process)
    assert (result.code, result.out) == (143, b"")
    assert result.err.startswith("ronde: rank 1 exited with code 3; logs of all ranks: ")


def test_an_error_after_a_signal_is_told(experiment: Any) -> None:
    process = experiment.start(
        """
        came = []
        signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
        note(f"rank{rank}")
        while not came:
            time.sleep(0.01)
        if rank == 1:
            raise ValueError("cannot save")
        wait_for_end_of("rank1")
        """
    )
    _pids(experiment, 2)
    process.terminate()
    result = experiment.finish(process)
    assert result.code == 0  # rank 0's own
    assert result.err.startswith("ronde: rank 1 failed: ValueError: cannot save; logs of all ranks: ")


def test_the_main_rank_may_save_longer_than_its_peers_take_to_end(experiment: Any) -> None:
    process = experiment.start(
        """
        try:
            note(f"rank{rank}")
            wait_for_ever()
        except KeyboardInterrupt:
            if rank == 0:
                wait_for_end_of("rank1")
                time.sleep(1.5)
                print("saved", flush=True)
                sys.exit(0)
            raise
        """
    )
    _pids(experiment, 2)
    process.send_signal(signal.SIGINT)
    result = experiment.finish(process)
    assert (result.code, result.out, result.err) == (0, b"saved\n", "")


def test_each_interrupt_is_given_once(experiment: Any) -> None:
    process = experiment.start(
        """
        count = 0
        def handle(number, frame):
            global count
            count += 1
        signal.signal(signal.SIGINT, handle)
        note(f"rank{rank}")
        signal.pause()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            time.sleep(0.01)
        print(count)
        """
    )
    _pids(experiment, 2)
    process.send_signal(signal.SIGINT)
    result = experiment.finish(process)
    assert (result.code, result.out, experiment.log(1)) == (0, b"1\n", "1\n")


def test_a_second_interrupt_kills(experiment: Any) -> None:
    process = experiment.start(
        """
        def handle(number, frame):
            note(f"handled{rank}")
        signal.signal(signal.SIGINT, handle)
        note(f"rank{rank}")
        wait_for_ever()
        """
    )
    pids = _pids(experiment, 2)
    process.send_signal(signal.SIGINT)
    experiment.pid("handled0")
    experiment.pid("handled1")
    process.send_signal(signal.SIGINT)
    assert experiment.finish(process).code == 130
    assert all(gone(pid) for pid in pids)


def test_an_interrupt_to_the_whole_group_counts_once(experiment: Any) -> None:
    """`timeout` and some schedulers signal the launcher's process group."""
    process = experiment.start(WAITING, ranks=2)
    _pids(experiment, 2)
    os.killpg(process.pid, signal.SIGTERM)
    result = experiment.finish(process)
    assert (result.code, result.err.count("SIGTERM")) == (143, 1)


def test_ignored_signals_stay_ignored(experiment: Any) -> None:
    """As under nohup: what the launcher was started with, the script keeps."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = experiment.start(
            """
            note(f"rank{rank}")
            while not (here / "go").exists():
                time.sleep(0.01)
            print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
            """
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    _pids(experiment, 2)
    process.send_signal(signal.SIGHUP)
    (experiment.directory / "go").touch()
    result = experiment.finish(process)
    assert (result.code, result.out) == (0, b"True\n")


def test_signals_are_not_blocked_in_the_script(experiment: Any) -> None:
    result = experiment.run("print(signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    assert (result.code, result.out) == (0, b"set()\n")


def test_ranks_die_with_a_killed_launcher(experiment: Any) -> None:
    process = experiment.start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING, ranks=3)
    pids = _pids(experiment, 3)
    began = time.monotonic()
    process.kill()
    wait_until(lambda: all(gone(pid) for pid in pids), "ranks to die with their launcher")
    assert time.monotonic() - began < 2
    assert experiment.finish(process).code == -signal.SIGKILL
