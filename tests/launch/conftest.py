"""A launcher to experiment with: the real one, in a process of its own, with a fake rank process."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("driver.py")
BOUND_S = 20.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return as soon as `condition()` holds; a test that waits too long says for what."""
    end = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """The process is dead, whether or not somebody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: bytes
    err: str


class Experiment:
    """One script under the launcher; scripts find the experiment's directory in `HERE`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.processes: list[subprocess.Popen[bytes]] = []

    def command(self, script: str, *arguments: str, ranks: int = 2) -> list[str]:
        path = self.directory / "script.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        return [sys.executable, str(DRIVER), str(self.run_dir), str(ranks), str(path), *arguments]

    def environment(self, **variables: str) -> dict[str, str]:
        return {**os.environ, "HERE": str(self.directory), **variables}

    def start(
        self, script: str, *arguments: str, ranks: int = 2, **variables: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.command(script, *arguments, ranks=ranks),
            env=self.environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], given: bytes | None = None) -> Result:
        out, err = process.communicate(given, timeout=BOUND_S)
        return Result(process.returncode, out, err.decode())

    def run(
        self, script: str, *arguments: str, ranks: int = 2, given: bytes | None = None, **env: str
    ) -> Result:
        return self.finish(self.start(script, *arguments, ranks=ranks, **env), given)

    def pid(self, name: str) -> int:
        """The number that a script has noted under this name, once it is there."""
        path = self.directory / f"{name}.pid"
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} to start")
        return int(path.read_text())

    def log(self, rank: int) -> str:
        return (self.run_dir / f"rank-{rank}.log").read_text()


PRELUDE = """\
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ["FAKE_RANK"])
here = pathlib.Path(os.environ["HERE"])

def note(name, pid=None):
    # Whole, or not at all: a signal may end this process meanwhile.
    (here / f"{name}.coming").write_text(f"{pid or os.getpid()}\\n")
    (here / f"{name}.coming").rename(here / f"{name}.pid")

def wait_for_end_of(name):
    pid = here / f"{name}.pid"
    while not pid.exists() or not pid.read_text().endswith("\\n"):
        time.sleep(0.01)
    while pathlib.Path("/proc", pid.read_text().strip()).exists():
        time.sleep(0.01)

def wait_for_ever():
    while True:
        signal.pause()

"""


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    """An experiment that fails its test if it leaves a process behind."""
    made = Experiment(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.wait(BOUND_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    left = [int(path.read_text()) for path in tmp_path.glob("*.pid") if not gone(int(path.read_text()))]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: processes {left}"
