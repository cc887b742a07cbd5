"""A user at a terminal: `breakpoint()`, `input()` and Ctrl-C at the prompt, under real ranks."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.randn(6, 4)).square().mean()
    if step == 1:
        breakpoint()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
rate = float(input("rate? "))
print("loss", loss.item() > 0, "rate", rate)
"""

CTRL_C = b"\x03"
TYPED = [
    (b"(Pdb) ", b"p 20 + 1\n"),
    (b"21", b""),
    (b"(Pdb) ", b"p loss\n"),
    (b"tensor(", b""),
    (b"(Pdb) ", CTRL_C),
    (b"--KeyboardInterrupt--", b""),
    (b"(Pdb) ", b"c\n"),
    (b"rate? ", b"0.5\n"),
]
BOUND_S = 100


@pytest.mark.soak
def test_the_terminal_is_the_main_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "ronde", "run", "--ranks", "2", "--run-dir", str(tmp_path / "run")]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], [*command, str(tmp_path / "train.py")], {**os.environ, "TERM": "xterm"})
    screen = _converse(terminal)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, screen
    assert b"loss True rate 0.5\r\n" in screen
    assert b"ronde: 2 optimizer steps in " in screen.rpartition(b"rate 0.5")[2]
    other = (tmp_path / "run" / "rank-1.log").read_text()
    assert other == "rate? loss True rate 0.5\n"


def _converse(terminal: int) -> bytes:
    """Type each line when its prompt has appeared; all that was on the screen."""
    screen, seen, left = b"", 0, list(TYPED)
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                screen += os.read(terminal, 65536)
            except OSError:  # the last user of the terminal is gone
                return screen
        while left and (place := screen.find(left[0][0], seen)) >= 0:
            if left[0][1] == CTRL_C and not _waits_for_a_key(terminal):
                break
            seen = place + len(left[0][0])
            os.write(terminal, left.pop(0)[1])
    raise AssertionError(f"waited in vain for {left[:1]}; the screen shows {screen!r}")


def _waits_for_a_key(terminal: int) -> bool:
    """Whether rank 0 sleeps: a Ctrl-C between its prompt and that is noticed at the next key only.

    That is so in plain python too, where the prompt is readline's.
    """
    launcher = os.tcgetpgrp(terminal)
    (main,) = (each for each in psutil.Process(launcher).children() if os.getpgid(each.pid) == launcher)
    return Path(f"/proc/{main.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
