"""What a launcher finds out about a process that does not help it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.conftest import wait_until
from ronde.trace.evidence import RankEvidence
from ronde.trace.evidence_collector import EvidenceCollector, main_thread_first
from ronde.trace.heartbeat import Heartbeat, look_at, vitals_path
from ronde.trace.lockstep_board import LockstepBoard, board_path
from ronde.trace.process_facts import catches, descendants, process
from ronde.trace.run_directory import RunDirectory

RANK = """
import ctypes, os, sys, threading, time
from types import SimpleNamespace
from ronde.runtime.heartbeat import show_signs_of_life
show_signs_of_life(SimpleNamespace(place=SimpleNamespace(run_dir=sys.argv[1], rank=0)))
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def begun():
    open(os.path.join(sys.argv[1], "begun"), "w").close()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Start code in a process that shows signs of life as rank 0; its number."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str) -> int:
        script = tmp_path / "rank.py"
        script.write_text(RANK + textwrap.dedent(code))
        started.append(subprocess.Popen([sys.executable, str(script), str(tmp_path)]))
        wait_until((tmp_path / "begun").exists, "the rank to begin")
        return started[-1].pid

    yield begin
    for each in started:
        each.kill()
        each.wait()


def look(folder: Path, pid: int) -> RankEvidence:
    return EvidenceCollector(RunDirectory(path=folder, run_id=""), lambda: {0: pid}).gather("asked").ranks[0]


def test_a_rank_that_sleeps(tmp_path: Path, start: Callable[[str], int]) -> None:
    found = look(tmp_path, start("begun()\ntime.sleep(60)"))
    assert found.process.state == "S"
    assert found.process.cpu == 0
    assert found.beat is not None
    assert found.beat < 2
    main, *others = found.stack.split("\n\n")
    assert "in <module>" in main  # which faulthandler writes last
    assert any("threading.py" in each for each in others)


def test_a_rank_that_holds_the_interpreter_gives_its_stack(
    tmp_path: Path, start: Callable[[str], int]
) -> None:
    lock = "mutex, lock = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock\n"
    waits = "while not os.path.exists(os.path.join(sys.argv[1], 'held')):\n    time.sleep(0.01)\n"
    pid = start(f"{lock}lock(mutex)\nbegun()\n{waits}lock(mutex)")

    def beats() -> bool:
        seen = look_at(vitals_path(tmp_path, 0))
        return seen is not None and seen.beat > 0

    wait_until(beats, "the first beat")
    (tmp_path / "held").touch()

    def silent() -> bool:
        seen = look_at(vitals_path(tmp_path, 0))
        return process(pid).state == "S" and seen is not None and time.monotonic() - seen.beat > 1.2

    wait_until(silent, "two beats to be missed")
    found = look(tmp_path, pid)
    assert found.beat is not None
    assert found.beat > 1
    assert "rank.py" in found.stack


def test_a_stopped_rank_is_not_asked(tmp_path: Path, start: Callable[[str], int]) -> None:
    pid = start("begun()\ntime.sleep(60)")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: process(pid).state == "T", "it to stop")
    found = look(tmp_path, pid)
    assert (found.process.state, found.stack) == ("T", "")


def test_a_script_that_wants_the_signal_has_it(tmp_path: Path, start: Callable[[str], int]) -> None:
    pid = start(
        """
        import signal
        from ronde.trace.heartbeat import STACK_SIGNAL
        signal.signal(STACK_SIGNAL, lambda *_: os._exit(9))
        time.sleep(0.7)  # a beat, which notices
        begun()
        time.sleep(60)
        """
    )
    found = look(tmp_path, pid)
    assert (found.process.state, found.stack) == ("S", "")


def test_what_linux_says_of_this_process() -> None:
    me = process(os.getpid())
    assert (me.state, me.pid) == ("R", os.getpid())
    assert me.threads >= 1
    assert me.files > 3
    assert me.memory > 1 << 20
    assert process(2**22 - 3).state == ""
    assert not catches(os.getpid(), (signal.SIGKILL,))
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in descendants({os.getpid()})[os.getpid()]
        assert descendants({os.getpid(), child.pid})[child.pid] == []
        child.kill()


def test_the_main_threads_stack_comes_first() -> None:
    one = 'Thread 0x0b (most recent call first):\n  File "a", line 1 in f\n'
    stack = f'{one}\nCurrent thread 0x0a:\n  File "b", line 2 in g\n'
    vitals = Heartbeat(pid=1, thread=0x0B, beat=0, step=0, answers=True, not_finite=0, threads=1)
    assert main_thread_first(stack, vitals).startswith("Thread 0x0b")
    assert main_thread_first(stack, None).startswith("Current thread 0x0a")
    assert main_thread_first("", None) == ""


def test_the_rings_are_read(tmp_path: Path) -> None:
    boards = [LockstepBoard(board_path(tmp_path, "boundary"), rank, 2) for rank in range(2)]
    for board in boards:
        number = board.record("all_reduce of float32 [3]", "train.py:7")
    boards[0].waits(number)
    boards[1].waits(number)
    boards[1].goes_on()
    gathered = EvidenceCollector(RunDirectory(path=tmp_path, run_id=""), lambda: {0: 0, 1: 0}).gather(
        "failure", codes={0: 1, 1: 1}
    )
    first, second = gathered.ranks
    assert first.children == ()
    assert (first.standing, first.where, first.what) == ("waiting", "train.py:7", "all_reduce of float32 [3]")
    assert second.standing == "running"
    assert first.collectives[0].left is None
    assert second.collectives[0].left is not None
    assert second.collectives[0].entered >= second.collectives[0].left
    for board in boards:
        board.close()
