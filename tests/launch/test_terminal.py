"""Behind a real terminal: the rank sees one too, keys reach it, bytes stay as they are."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import BOUND_S, Experiment, gone, wait_until


class Session:
    """The launcher as the foreground job of a terminal of its own."""

    def __init__(self, experiment: Experiment, script: str, ranks: int, **variables: str) -> None:
        command = experiment.command(script, ranks=ranks)
        environment = experiment.environment(**variables)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
            os.execve(command[0], command, environment)
        self.screen = b""

    def read_until(self, text: bytes) -> None:
        end = time.monotonic() + BOUND_S
        while text not in self.screen:
            assert time.monotonic() < end, f"{text!r} did not appear in {self.screen!r}"
            self._read()

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def code(self) -> int:
        """The launcher's exit code, with all output read."""
        end = time.monotonic() + BOUND_S
        while time.monotonic() < end:
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                while self._read():
                    pass
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"no end; the screen shows {self.screen!r}")

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)

    def _read(self) -> bool:
        if not select.select([self.terminal], [], [], 0.05)[0]:
            return False
        with contextlib.suppress(OSError):  # the terminal's last user is gone
            data = os.read(self.terminal, 65536)
            self.screen += data
            return bool(data)
        return False


@pytest.fixture
def sessions() -> Iterator[list[Session]]:
    opened: list[Session] = []
    yield opened
    for session in opened:
        session.close()


def test_ranks_have_a_terminal_of_the_same_size(experiment: Any, sessions: list[Session]) -> None:
    session = Session(experiment, "print([os.isatty(i) for i in range(3)], os.get_terminal_size(1))", 2)
    sessions.append(session)
    assert session.code() == 0
    assert session.screen == b"[True, True, True] os.terminal_size(columns=77, lines=33)\r\n"
    assert experiment.log(0) == "[True, True, True] os.terminal_size(columns=77, lines=33)\n"
    assert experiment.log(1) == "[False, True, True] os.terminal_size(columns=77, lines=33)\n"


def test_input_comes_from_the_terminal(experiment: Any, sessions: list[Session]) -> None:
    script = """
    if rank == 0:
        print("got", input("name? "))
    """
    session = Session(experiment, script, 2)
    sessions.append(session)
    session.read_until(b"name? ")
    session.type(b"ada\n")
    assert session.code() == 0
    assert session.screen.endswith(b"got ada\r\n")


def test_the_interrupt_key_reaches_each_rank_once(experiment: Any, sessions: list[Session]) -> None:
    script = """
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
    print("interrupts:", count)
    """
    session = Session(experiment, script, 2)
    sessions.append(session)
    experiment.pid("rank0")
    experiment.pid("rank1")
    session.type(b"\x03")
    assert session.code() == 0
    assert b"interrupts: 1\r\n" in session.screen
    assert experiment.log(1) == "interrupts: 1\n"


def test_an_unhandled_interrupt_key_ends_all_with_130(experiment: Any, sessions: list[Session]) -> None:
    session = Session(experiment, 'note(f"rank{rank}")\nwait_for_ever()', 2)
    sessions.append(session)
    pids = [experiment.pid("rank0"), experiment.pid("rank1")]
    session.type(b"\x03")
    assert session.code() == 130
    assert all(gone(pid) for pid in pids)
    assert b"ronde:" not in session.screen


def test_a_new_size_is_passed_on(experiment: Any, sessions: list[Session]) -> None:
    script = """
    note(f"rank{rank}")
    while os.get_terminal_size(1).columns != 50:
        time.sleep(0.01)
    """
    session = Session(experiment, script, 2)
    sessions.append(session)
    experiment.pid("rank0")
    experiment.pid("rank1")
    fcntl.ioctl(session.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
    assert session.code() == 0


def test_ranks_stop_and_go_on_with_the_launcher(experiment: Any, sessions: list[Session]) -> None:
    script = """
    note(f"rank{rank}")
    while not (here / "go").exists():
        time.sleep(0.01)
    """
    session = Session(experiment, script, 2)
    sessions.append(session)
    pids = [session.pid, experiment.pid("rank0"), experiment.pid("rank1")]
    for pid in pids[:2]:
        os.kill(pid, signal.SIGTSTP)
    wait_until(lambda: _state(pids[2]) == "T", "the other rank to stop")
    wait_until(lambda: _state(pids[0]) == "T", "the launcher to stop")
    for pid in pids[:2]:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: _state(pids[2]) != "T", "the other rank to go on")
    (experiment.directory / "go").touch()
    assert session.code() == 0


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rpartition(")")[2].split()[0]


def test_a_progress_line_comes_and_goes(experiment: Any, sessions: list[Session]) -> None:
    script = """
    from ronde.trace.progress import Pulse
    if rank == 0:
        pulse = Pulse.open(here / "run" / "pulse")
        print("epoch 1")
        step = 0
        while not (here / "go").exists():
            step += 1
            pulse.beat(step, 32 * step)
            time.sleep(0.01)
        print("epoch 2")
    """
    session = Session(experiment, script, 2, TERM="xterm")
    sessions.append(session)
    session.read_until(b" samples/s, 0:0")
    (experiment.directory / "go").touch()
    assert session.code() == 0
    drawn = re.split(rb"\r\x1b\[2K", session.screen)
    assert drawn[0] == b"epoch 1\r\n"
    assert drawn[-1] == b"epoch 2\r\n"
    assert all(
        re.fullmatch(rb"ronde: step \d+, [\d.]+ steps/s, \d+ samples/s, 0:\d\d\r", line)
        for line in drawn[1:-1]
    )
    assert experiment.log(0) == "epoch 1\nepoch 2\n"
