"""The progress line: what the user's screen shows in the end is what the script wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ronde.launch.progress_line import SILENCE_S, ProgressLine
from ronde.launch.screen import Screen
from ronde.trace.progress import Pulse


def seen(data: bytes) -> list[str]:
    """The lines that a terminal shows after these bytes; knows what a plain script and ronde use."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[2K|\r|\n|[^\r\n\x1b]+", data.decode()):
        if part == "\x1b[2K":
            lines[-1] = ""
        elif part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


_END = b"\x00"


class Terminal:
    """A pty, with a screen on it and a pulse."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ours, self.theirs = os.openpty()
        self.screen = Screen(self.theirs)
        # This pty controls nobody, so nobody is in its foreground.
        monkeypatch.setattr(Screen, "_is_ours", lambda _: True)
        pulse = Pulse.create(directory / "pulse")
        assert pulse is not None
        self.pulse = pulse
        self.line = ProgressLine(self.screen, pulse)
        self.data = b""
        self.now = self.screen.silent_since()

    def after(self, seconds: float, steps: int = 0, samples: int = 0) -> list[str]:
        """What is shown when this time has passed since the last look and so many steps were taken."""
        self.now += seconds
        self.pulse.beat(self.pulse.steps + steps, self.pulse.samples + samples)
        self.line.tick(self.now)
        return self.shown()

    def write(self, data: bytes) -> list[str]:
        self.screen.pass_on(self.theirs, data)
        return self.shown()

    def shown(self) -> list[str]:
        os.write(self.theirs, _END)  # the kernel carries bytes over when it likes, in their order
        fresh = b""
        while not fresh.endswith(_END):
            fresh += os.read(self.ours, 65536)
        # The terminal makes "\r\n" of what was "\n".
        self.data += fresh.removesuffix(_END).replace(b"\r\n", b"\n\r")
        return seen(self.data)


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(tmp_path, monkeypatch)
    yield made
    made.pulse.close()
    os.close(made.ours)
    os.close(made.theirs)


def test_it_is_there_while_the_script_is_silent_only(terminal: Terminal) -> None:
    assert terminal.write(b"start\n") == ["start", ""]
    terminal.now = terminal.screen.silent_since()
    assert terminal.after(1.0, steps=5) == ["start", ""]
    shown = terminal.after(SILENCE_S, steps=35, samples=320)
    assert shown[0] == "start"
    assert re.fullmatch(r"ronde: step 40, 11\.7 steps/s, 107 samples/s, 0:0\d", shown[1])
    assert terminal.write(b"epoch 1\n") == ["start", "epoch 1", ""]


def test_it_shows_the_speed_of_the_last_seconds(terminal: Terminal) -> None:
    for _ in range(30):
        terminal.after(1.0, steps=1)
    assert "step 30, 1.0 steps/s" in terminal.shown()[0]
    for _ in range(15):
        terminal.after(1.0, steps=20)
    assert "step 330, 20.0 steps/s" in terminal.shown()[0]


def test_no_speed_is_told_before_there_is_one(terminal: Terminal) -> None:
    """The first step comes after minutes of loading, which say nothing of the steps to come."""
    assert re.fullmatch(r"ronde: step 1, 2:0\d", terminal.after(121.0, steps=1, samples=64)[0])
    assert "step 2, 0.5 steps/s, 32.0 samples/s" in terminal.after(2.0, steps=1, samples=64)[0]
    assert "step 3, 0.04 steps/s, 2.6 samples/s" in terminal.after(25.0, steps=1, samples=64)[0]


def test_a_bar_or_a_prompt_keeps_its_line(terminal: Terminal) -> None:
    bar = b"\r 10%|#         | 3/30"
    terminal.write(bar)
    assert terminal.after(60.0, steps=100) == [" 10%|#         | 3/30"]
    assert terminal.write(b"\r 20%|##        | 6/30") == [" 20%|##        | 6/30"]


def test_a_user_at_a_prompt_has_the_terminal(terminal: Terminal) -> None:
    assert "step 7" in terminal.after(10.0, steps=7)[0]
    terminal.pulse.attended = True
    assert terminal.after(10.0, steps=7) == [""]
    terminal.pulse.attended = False
    assert "step 15" in terminal.after(10.0, steps=1)[0]


def test_it_is_not_redrawn_without_a_step(terminal: Terminal) -> None:
    terminal.after(10.0, steps=7)
    before = len(terminal.data)
    terminal.after(10.0)
    assert len(terminal.data) == before


def test_it_is_cut_to_the_width_and_wiped_in_the_end(terminal: Terminal) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 12, 0, 0))
    assert terminal.after(10.0, steps=7) == ["ronde: step"]
    terminal.line.start()
    terminal.line.stop()
    assert terminal.shown() == [""]


def test_only_a_terminal_that_can_wipe_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    assert Screen.of_user({"TERM": "dumb"}) is None
    assert Screen.of_user({}) is None
    monkeypatch.setattr(os, "isatty", lambda _: False)
    assert Screen.of_user({"TERM": "xterm"}) is None
