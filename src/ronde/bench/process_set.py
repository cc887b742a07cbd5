"""Sets of processes for one measured run, started and ended together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ronde.errors import BenchError

__all__ = ["Process", "end", "run_all", "run_together", "start", "tail", "wait_all"]

_LOOK_EVERY = 0.005  # seconds between polls; start-up is measured to a hundredth
_GRACE = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A command line and its whole environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def run_together(processes: Sequence[Process], *, timeout: float) -> tuple[str, float]:
    """Run all to their end.

    Returns:
        The stdout of the first one, and the seconds from first start to last end.

    Raises:
        BenchError: one fails (with the end of its stderr), or time is up; the others are ended.
    """
    outputs, wall = run_all(processes, timeout=timeout)
    return outputs[0], wall


def run_all(processes: Sequence[Process], *, timeout: float) -> tuple[list[str], float]:
    """Run all to their end as `run_together` does, and return the stdout of each."""
    with tempfile.TemporaryDirectory(prefix="ronde-bench-") as name:
        folder = Path(name)
        begun = time.perf_counter()
        running = [start(process, folder, place) for place, process in enumerate(processes)]
        try:
            _wait(running, processes, folder, begun + timeout)
            wall = time.perf_counter() - begun
        finally:
            end(running)
        return [(folder / f"{place}.out").read_text() for place in range(len(processes))], wall


def start(process: Process, folder: Path, place: int) -> subprocess.Popen[bytes]:
    """Start a process with its output in the folder's files `PLACE.out` and `PLACE.err`."""
    with open(folder / f"{place}.out", "wb") as out, open(folder / f"{place}.err", "wb") as err:
        # A separate session, so that ending it also ends the processes that it started.
        return subprocess.Popen(
            process.command,
            env=dict(process.environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def _wait(
    running: Sequence[subprocess.Popen[bytes]], processes: Sequence[Process], folder: Path, deadline: float
) -> None:
    while True:
        codes = [child.poll() for child in running]
        for place, code in enumerate(codes):
            if code:
                raise BenchError(
                    f"`{' '.join(processes[place].command)}` ended with exit code {code}: "
                    f"{tail(folder / f'{place}.err')} [R852]"
                )
        if all(code == 0 for code in codes):
            return
        if time.perf_counter() > deadline:
            raise BenchError(
                f"`{' '.join(processes[0].command)}` did not end in time; use fewer --steps: "
                f"{tail(folder / '0.err')} [R852]"
            )
        time.sleep(_LOOK_EVERY)


def tail(path: Path) -> str:
    """Return the end of a process's stderr."""
    return path.read_text(errors="replace").strip()[-2000:] or "it printed nothing on stderr"


def end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the running processes by SIGTERM, on which launchers end their ranks, then SIGKILL."""
    for child in running:
        if child.poll() is None:
            child.terminate()
    for child in wait_all(running, _GRACE):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def wait_all(running: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Wait for processes, and return the ones that still run."""
    deadline = time.perf_counter() + seconds
    for child in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.perf_counter()))
    return [child for child in running if child.poll() is None]
