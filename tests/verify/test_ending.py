"""`ronde verify` leaves no process behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ronde.launch.linux_process import is_alive

MARK = "RONDE_TEST_OF_ENDING"
# Its children get no end of file and no signal from it, and one is in a session of its own.
STUBBORN = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
print("started", flush=True)
"""
# As `ronde verify` starts a run.
STARTER = """
import os, subprocess, sys
words = [sys.executable, "-m", "ronde.verify.keeper", str(os.getpid()), sys.executable, "-c", sys.argv[1]]
sys.exit(subprocess.run(words, start_new_session=True).returncode)
"""
TRAINING = f"""{STUBBORN}
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with open(sys.argv[1], "a") as file:
    file.write("x")
while True:
    net(torch.ones(4, 3)).square().mean().backward()
    if os.path.getsize(sys.argv[1]) >= int(sys.argv[2]):
        time.sleep(1000)
    optimizer.step()
"""


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Callable[[], set[int]]]:
    """The live processes that have inherited a mark of this test in their environment."""
    mark = f"{MARK}={tmp_path}".encode()

    def processes() -> set[int]:
        found: set[int] = set()
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
        return {pid for pid in found if is_alive(pid)}

    yield processes
    for pid in processes():
        os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def started(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, MARK: str(tmp_path), "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE
    )


def test_a_killed_proof_leaves_no_process(tmp_path: Path, marked: Callable[[], set[int]]) -> None:
    with started(tmp_path, "-c", STARTER, STUBBORN + "time.sleep(300)") as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "started\n"
        assert len(marked()) == 5  # the starter, the keeper, the script and its two children
        starter.kill()
        wait_for(lambda: not marked())


def test_a_run_that_ends_leaves_no_process(tmp_path: Path, marked: Callable[[], set[int]]) -> None:
    with started(tmp_path, "-c", STARTER, STUBBORN + "sys.exit(3)") as starter:
        assert starter.wait(60) == 3
        assert not marked()


@pytest.mark.soak
@pytest.mark.parametrize("runs", [1, 2], ids=["plain", "ranks"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_proof_that_a_signal_ends_leaves_nothing(
    number: signal.Signals, runs: int, tmp_path: Path, marked: Callable[[], set[int]]
) -> None:
    """While plain python runs, or the ranks."""
    project, seen = tmp_path / "project", tmp_path / "seen"
    project.mkdir()
    (project / "train.py").write_text(TRAINING)
    words = ["-m", "ronde", "verify", "--threads", "1", "--steps", "3", str(project / "train.py")]
    with started(tmp_path, *words, str(seen), str(runs)) as proof:
        wait_for(lambda: seen.exists() and seen.stat().st_size >= runs)
        proof.send_signal(number)
        code = proof.wait(60)
        assert code == (-9 if number == signal.SIGKILL else 128 + number)
        wait_for(lambda: not marked())
    left = [path.name for path in tmp_path.iterdir() if path not in (project, seen)]
    if number != signal.SIGKILL:  # of a killed one the next run removes it
        assert not [name for name in left if name.startswith("ronde-")]
