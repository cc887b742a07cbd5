"""A rank fails: one report names it, peers are ended within 2 s, nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from .conftest import gone, wait_until

LIMIT_S = 2.0


def test_the_error_of_another_rank_is_shown_with_its_traceback(experiment: Any) -> None:
    result = experiment.run(
        """
        if rank == 2:
            raise ValueError("bad label 11")
        raise LookupError("peer")
        """,
        ranks=3,
    )
    assert result.code == 1
    assert result.err.startswith("ronde: rank 2 failed: ValueError: bad label 11; logs of all ranks: ")
    assert result.err.count("Traceback (most recent call last)") == 1
    assert result.err.count("ronde:") == 1


def test_an_error_that_all_ranks_meet_is_shown_once(experiment: Any) -> None:
    result = experiment.run(
        """
        if rank == 0:
            time.sleep(0.2)  # rank 0 is a little late
        raise ValueError("bad label 11")
        """,
        ranks=3,
    )
    assert result.code == 1
    assert result.err.count("Traceback (most recent call last)") == 1
    assert result.err.count("ValueError: bad label 11") == 1
    assert result.err.splitlines()[-1].startswith(
        "ronde: rank 0 failed (so did 2 more), its traceback is above"
    )


def test_the_first_of_two_errors_counts(experiment: Any) -> None:
    result = experiment.run(
        """
        first = here / "run" / "rank-1.error.json"
        if rank == 0:
            while not first.exists():
                time.sleep(0.001)
            raise RuntimeError("connection closed by peer")
        raise ValueError("the cause")
        """
    )
    assert result.code == 1
    assert "ronde: rank 1 failed: ValueError: the cause" in result.err


def test_a_killed_rank_is_named_with_its_signal_and_peers_are_ended(experiment: Any) -> None:
    process = experiment.start(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(f"rank{rank}")
        wait_for_ever()
        """,
        ranks=3,
    )
    pids = [experiment.pid(f"rank{rank}") for rank in range(3)]
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for pid in pids), "peers to end")
    assert time.monotonic() - began < LIMIT_S
    result = experiment.finish(process)
    assert result.code == 128 + signal.SIGKILL
    assert result.err.startswith("ronde: error[R195]: rank 1 was killed by SIGKILL; logs of all ranks: ")


def test_a_killed_main_rank_alone_is_reported_too(experiment: Any) -> None:
    result = experiment.run("print('begun', flush=True); os.kill(os.getpid(), signal.SIGKILL)", ranks=1)
    assert (result.code, result.out) == (137, b"begun\n")
    assert result.err.startswith("ronde: error[R195]: rank 0 was killed by SIGKILL")


def test_a_crash_shows_the_end_of_the_ranks_log(experiment: Any) -> None:
    result = experiment.run(
        """
        note(f"rank{rank}")
        if rank == 1:
            print("step 41", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        wait_for_ever()
        """
    )
    assert result.code == 128 + signal.SIGSEGV
    assert "rank 1 was killed by SIGSEGV" in result.err
    assert result.err.endswith("step 41\n")


def test_the_report_begins_a_new_line(experiment: Any) -> None:
    result = experiment.run(
        """
        if rank == 0:
            sys.stderr.write("50 %")
            sys.stderr.flush()
            note("main")
            wait_for_ever()
        while not (here / "main.pid").exists():
            time.sleep(0.01)
        raise ValueError("late")
        """
    )
    assert result.err.startswith("50 %\nronde: rank 1 failed: ValueError: late")


def test_children_of_ranks_and_their_shared_memory_go_too(experiment: Any) -> None:
    process = experiment.start(
        """
        if rank == 1:
            stubborn = "from signal import *; signal(SIGTERM, SIG_IGN); print(flush=True); pause()"
            command = [sys.executable, "-c", stubborn]
            child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
            child.stdout.readline()
            pathlib.Path(f"/dev/shm/torch_{child.pid}_1_0").write_bytes(b"batch")
            note("child", child.pid)
        note(f"rank{rank}")
        wait_for_ever()
        """
    )
    child, victim = experiment.pid("child"), experiment.pid("rank1")
    memory = Path(f"/dev/shm/torch_{child}_1_0")
    try:
        os.kill(victim, signal.SIGKILL)
        assert experiment.finish(process).code == 137
        assert gone(child)
        assert not memory.exists()
    finally:
        memory.unlink(missing_ok=True)


def test_what_the_script_left_running_is_ended_and_named(experiment: Any) -> None:
    result = experiment.run(
        """
        note("child", subprocess.Popen(["sleep", "1000"]).pid)
        """,
        ranks=1,
    )
    assert result.code == 0
    said = "ronde: note[R126]: ended processes that the script left running"
    assert result.err == f"{said}: sleep (process {experiment.pid('child')})\n"


def test_a_rank_that_cannot_be_started(experiment: Any, tmp_path: Path) -> None:
    import pytest

    from ronde.errors import LaunchError
    from ronde.launch.job import LaunchJob
    from ronde.launch.launcher import launch
    from ronde.launch.run_spec import RunSpec
    from ronde.trace.run_directory import RunDirectory

    directory = RunDirectory.create(tmp_path / "run", os.environ)
    job = LaunchJob(
        run=RunSpec(
            script="train.py",
            worker=(str(tmp_path / "no-python"),),
        ),
        ranks=2,
        run_directory=directory,
        environment=os.environ,
        shown=False,
    )
    with pytest.raises(LaunchError, match="rank 0 could not be started"):
        launch(job)
    directory.release()
