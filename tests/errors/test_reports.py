"""Ranks that fail or do not come: what the launcher says, word by word. The ranks are fake."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from errors.normal import ADVICE, normal
from ronde.launch.failure import ErrorFile, RankDeath, RankExits, RankFailure, failure_beside
from ronde.launch.failure_report import report
from ronde.trace.run_directory import RunDirectory

BOARD = """
        import faulthandler
        from ronde.trace.heartbeat import STACK_SIGNAL
        from ronde.trace.lockstep_board import BoardState, LockstepBoard
        run = here / "run"
        faulthandler.register(STACK_SIGNAL, file=open(run / f"rank-{rank}.stack", "w"), all_threads=False)
        board = LockstepBoard(run / "boundary.board", rank, 2)

        def wait_at(line):
            board.waits(board.record("all_reduce of float32 [3]", line))

        def until_the_other_waits():
            while board.standings()[1 - rank].state is not BoardState.WAITING:
                time.sleep(0.01)

"""


def said(experiment: Any, script: str, ranks: int = 2, **variables: str) -> tuple[int, str]:
    result = experiment.run(script, ranks=ranks, **variables)
    return result.code, normal(result.err, experiment.directory)


def test_a_rank_that_hangs_while_its_peer_waits(experiment: Any) -> None:
    script = """
        def load():
            wait_for_ever()

        if rank == 0:
            wait_at("train.py:12")
            wait_for_ever()
        until_the_other_waits()
        load()
        """
    code, text = said(experiment, BOARD + script, DRIVER_TIMEOUT="1.5")
    assert code == 1
    notice, _, end = text.partition("ronde: error: the run hung")
    place = "rank 1 is at DIR/script.py:19, in wait_for_ever"
    assert notice == (
        "ronde: ranks have waited for 0.75 s; the run is ended after 1.5 s of this (--timeout)\n"
        f"  rank 0 waits at train.py:12: all_reduce of float32 [3]\n  {place}\n"
    )
    assert end == (
        " for 1.5 s and was ended (--timeout)\n"
        f"  rank 0 waits at train.py:12: all_reduce of float32 [3]\n  {place}\n"
        "if ranks need so long, give them more time: --timeout SECONDS\n"
        f"{ADVICE}\n"
        "logs of all ranks: DIR/run\n"
    )


def test_a_rank_that_ends_while_its_peer_waits(experiment: Any) -> None:
    script = """
        if rank == 0:
            wait_at("train.py:12")
            note("main")
            wait_for_end_of("other")
            raise LookupError("peer")
        note("other")
        until_the_other_waits()
        os._exit(0)
        """
    assert said(experiment, BOARD + script) == (
        1,
        "ronde: error: rank 1 came to the end of the script while rank 0 waited for it at train.py:12 "
        f"(all_reduce of float32 [3]); logs of all ranks: DIR/run\n{ADVICE}\n",
    )


def test_a_rank_that_exits_with_a_code_while_its_peer_waits(experiment: Any) -> None:
    script = """
        if rank == 0:
            wait_at("train.py:12")
            wait_for_ever()
        until_the_other_waits()
        sys.exit(3)
        """
    assert said(experiment, BOARD + script) == (
        3,
        "ronde: rank 1 exited with code 3 while rank 0 waited for it at train.py:12 (all_reduce of float32 "
        f"[3]); logs of all ranks: DIR/run\n{ADVICE}\n",
    )


def test_a_main_rank_that_exits_while_its_peer_waits(experiment: Any) -> None:
    script = """
        if rank == 1:
            wait_at("train.py:12")
            wait_for_ever()
        until_the_other_waits()
        sys.exit(3)
        """
    assert said(experiment, BOARD + script) == (
        3,
        "ronde: rank 0 exited with code 3 while rank 1 waited for it at train.py:12 (all_reduce of float32 "
        f"[3]); logs of all ranks: DIR/run\n{ADVICE}\n",
    )


def test_all_ranks_that_exit_with_a_code_have_said_it_themselves(experiment: Any) -> None:
    assert said(experiment, "sys.exit(3)") == (3, "")


def test_a_rank_that_raises(experiment: Any) -> None:
    script = """
        if rank == 1:
            raise ValueError("bad label 11")
        wait_for_ever()
        """
    code, text = said(experiment, script)
    head, _, traceback = text.partition("\n")
    assert code == 1
    assert head == "ronde: rank 1 failed: ValueError: bad label 11; logs of all ranks: DIR/run"
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert traceback.endswith('    raise ValueError("bad label 11")\nValueError: bad label 11\n')


def test_a_rank_that_is_out_of_memory(experiment: Any) -> None:
    script = """
        if rank == 1:
            bytes(1 << 60)
        wait_for_ever()
        """
    code, text = said(experiment, script)
    assert code == 1
    assert text.startswith("ronde: rank 1 failed: MemoryError; logs of all ranks: DIR/run\nTraceback ")
    assert text.endswith("    bytes(1 << 60)\nMemoryError\n")


def test_a_rank_that_is_killed(experiment: Any) -> None:
    script = """
        if rank == 1:
            print("step 41", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for_ever()
        """
    assert said(experiment, script) == (
        137,
        "ronde: error: rank 1 was killed by SIGKILL; logs of all ranks: DIR/run\nusually the kernel kills "
        "a rank when memory runs out (see dmesg); to need less memory: a smaller batch, fewer ranks, or "
        "--plan zero3,micro-batches=4\nthe last lines of rank-1.log:\nstep 41\n",
    )


def test_one_rank_that_is_killed(experiment: Any) -> None:
    assert said(experiment, "os.kill(os.getpid(), signal.SIGKILL)", ranks=1) == (
        137,
        "ronde: error: rank 0 was killed by SIGKILL; log: DIR/run/rank-0.log\nusually the kernel kills a "
        "rank when memory runs out (see dmesg); to need less memory: a smaller batch, or --plan "
        "micro-batches=4\n",
    )


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "SIGBUS",
            "usually shared memory is full, or the disk of a mapped file: check df /dev/shm, and make it "
            "larger (docker run --shm-size=8g)\n",
        ),
        (
            "SIGSEGV",
            (
                "compiled code has crashed, of torch or another library; to see the line of the script "
                "that called it: PYTHONFAULTHANDLER=1 ronde run ...\n"
            ),
        ),
        ("SIGTERM", ""),
    ],
)
def test_a_rank_that_a_signal_ends(experiment: Any, name: str, advice: str) -> None:
    script = f"""
        if rank == 1:
            os.kill(os.getpid(), signal.{name})
        wait_for_ever()
        """
    assert said(experiment, script) == (
        128 + getattr(signal, name),
        f"ronde: {'error: ' if advice else ''}rank 1 was killed by {name}; logs of all ranks: DIR/run\n"
        f"{advice}",
    )


def test_an_error_with_other_numbers_on_every_rank(experiment: Any) -> None:
    """What a rank says of itself to the launcher: mended alike, it is told once."""
    script = """
        import json
        from ronde.launch.rank_config import RankConfig
        report = {
            "rank": rank, "time": time.time(), "kind": "script", "type": "RuntimeError", "traceback": "trace",
            "message": f"worker {os.getpid()} is gone", "advice": "make shared memory larger",
        }
        if rank == 0:
            print("trace and advice", file=sys.stderr)
        target = here / "run" / f"rank-{rank}.error.json"
        target.with_suffix(".part").write_text(json.dumps(report))
        target.with_suffix(".part").rename(target)
        while len(list((here / "run").glob("*.error.json"))) < 2:
            time.sleep(0.01)
        sys.exit(1)
        """
    assert said(experiment, script) == (
        1,
        "trace and advice\n"
        "ronde: rank 0 failed (so did 1 more), its traceback is above; logs of all ranks: DIR/run\n",
    )


def test_a_script_that_removes_the_run_directory(experiment: Any) -> None:
    script = """
        if rank == 1:
            import shutil
            shutil.rmtree(here / "run")
            os._exit(1)
        wait_for_ever()
        """
    assert said(experiment, script) == (
        1,
        "ronde: error: rank 1 exited with code 1; the run directory was removed while ranks wrote to it; "
        "keep it until the run has ended: DIR/run\n",
    )


def test_what_outlives_the_script(experiment: Any) -> None:
    script = """
        note("child", subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
        """
    assert said(experiment, script, ranks=1) == (
        0,
        "ronde: ended processes that the script left running: sleep (process N)\n",
    )


def peer(rank: int) -> ErrorFile:
    return ErrorFile(rank=rank, time=9.0, kind="peer", type="PeerLost", message="x", traceback="")


def test_what_a_signal_brings_with_it_is_no_failure() -> None:
    ended = [RankDeath(rank=rank, time=1.0, code=-signal.SIGTERM) for rank in (0, 1)]
    left = [RankDeath(rank=rank, time=1.0, code=3) for rank in (0, 1)]
    numbers = {signal.SIGTERM, signal.SIGINT}
    assert failure_beside(numbers, ended, {}) is None
    assert failure_beside(numbers, left, {}) is None
    assert failure_beside(numbers, [ended[1]], {0: peer(0)}) is None
    assert failure_beside(numbers, [left[0]], {1: peer(1)}) is None


def test_what_goes_wrong_beside_a_signal_is_a_failure() -> None:
    diverged = ErrorFile(rank=1, time=2.0, kind="diverged", type="DivergedError", message="x", traceback="")
    left = RankDeath(rank=1, time=1.0, code=3)
    crashed = RankDeath(rank=1, time=1.0, code=-signal.SIGSEGV)
    found = [
        failure_beside({signal.SIGTERM}, [], {0: peer(0), 1: diverged}),
        failure_beside({signal.SIGTERM}, [left], {0: peer(0)}),
        failure_beside({signal.SIGTERM}, [crashed], {0: peer(0)}),
        failure_beside({signal.SIGTERM}, [RankDeath(rank=1, time=1.0, code=0)], {0: peer(0)}),
    ]
    assert [each.kind for each in found if each is not None] == ["diverged", "exit", "signal", "peer"]


def test_an_error_of_ours_is_told_without_its_class() -> None:
    error = ErrorFile(
        rank=1, time=0.0, kind="ronde", type="UsageError", message="no input: give --data\nmore", traceback=""
    )
    failure = RankFailure(rank=1, time=0.0, kind="ronde", exit_code=1, error=error)
    assert failure.summary == "rank 1 failed: no input: give --data"


def test_ranks_that_have_all_lost_each_other_say_why(tmp_path: Path) -> None:
    """What breaks a collective on every rank is no consequence of another rank's end."""
    ends = RankExits()
    ends.errors = {
        rank: ErrorFile(
            rank=rank, time=float(rank), kind="peer", type="PeerLost", message="no memory",
            traceback="Traceback\nPeerLost: no memory",
        )
        for rank in (0, 1)
    }  # fmt: skip
    ends.deaths = [RankDeath(rank=rank, time=float(rank), code=1) for rank in (0, 1)]
    first = ends.failure()
    assert first is not None
    directory = RunDirectory(path=tmp_path, run_id="x")
    told = report(first, ends, directory, 2, main_shown=True)
    assert told == f"rank 0 lost its peers (PeerLost: no memory); logs of all ranks: {tmp_path}"
