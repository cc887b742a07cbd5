"""Opening the page of a long run on many ranks: `python -m benchmarks.ui`.

The files of a run of 10^6 steps on 256 ranks are made, and `ronde ui` serves them.

    first state   seconds from the request to the whole state, of a server that has not read the run yet
    again         the same for a second reader
    state         size of what is sent
    memory        growth of the server's resident memory from its start to 8 readers; and all of it
    drawn         seconds until headless Chromium has drawn the page, where there is playwright
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ronde.bench.machine import Machine
from ronde.trace.events import write_event
from ronde.trace.step_file import StepFile, StepRecord, steps_path

__all__ = ["main", "make_run"]

_MS = 1_000_000
# Steps of a record, so that a million make a course of nearly the greatest length.
_FOLDED = 256
_READERS = 8


def make_run(folder: Path, *, ranks: int, steps: int) -> None:
    """Write a run's files, with records that stand for many steps each."""
    folder.mkdir(parents=True)
    first = _make_rank(folder, 0, ranks, steps).read_bytes()
    for rank in range(1, ranks):
        # The number of a rank is the second of the header's.
        header = first[:8] + rank.to_bytes(8, "little") + first[16:]
        steps_path(folder, rank).write_bytes(header)
    write_event(folder, "start", "train.py", rank=0, script="train.py", plan="zero2", ranks=ranks)
    write_event(folder, "end", "exit code 0", exit_code=0)


def _make_rank(folder: Path, rank: int, ranks: int, steps: int) -> Path:
    path = steps_path(folder, rank)
    clocks = (time.time_ns() - steps * 10 * _MS, 1)
    file = StepFile(path, rank=rank, world_size=ranks, process=os.getpid(), clocks=clocks, host="host")
    for number in range(1, steps // _FOLDED + 1):
        step, long = number * _FOLDED, _FOLDED * 10 * _MS
        record = StepRecord(
            step=step, steps=_FOLDED, begun=(number - 1) * long + 1, ended=number * long + 1, data=long // 10,
            forward=long // 3, backward=long // 3, optimizer=long // 20, waited=long // 10,
            samples=32 * _FOLDED, resident=(300 << 20) + number, device=0, sent=(_FOLDED << 20, 0, 0, 0),
            collectives=_FOLDED, last=number % 3, late=_MS, loss=2.3 / number + 0.01, losses=_FOLDED,
        )  # fmt: skip
        file.write(record.values())
        file.show_since(record.ended, step, 32 * step)
    file.close()
    return path


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the process of `ronde ui` and its port."""
    command = [sys.executable, "-m", "ronde", "ui", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stderr.readline())
            assert found is not None, "the server has not begun"
            _get(int(found[1]), "/")
            yield process.pid, int(found[1])
        finally:
            process.terminate()


def _get(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    connection.getresponse().read()
    connection.close()


def _state(port: int) -> tuple[float, int, http.client.HTTPConnection]:
    """Return the seconds until the state has come, its size, and the open connection."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    while not (line := answer.readline()).startswith(b"data: "):
        pass
    return time.perf_counter() - begun, len(line), connection


def _resident(process: int) -> float:
    """Resident memory of a process in MB."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) / 1000


def _drawn(port: int) -> float | None:
    """Return the seconds until a browser has drawn the page; None without browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    if browser is None:
        return None
    with sync_playwright() as started:
        made = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = made.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#loss .line")
        milliseconds = page.evaluate("performance.now()")
        made.close()
    return milliseconds / 1000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ui", description=__doc__)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(Machine.here().line)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_run(run, ranks=options.ranks, steps=options.steps)
        for _ in range(options.rounds):
            with _served(run) as (process, port):
                before = _resident(process)
                first, size, *readers = _state(port)
                again, _, reader = _state(port)
                readers += [reader, *(_state(port)[2] for _ in range(_READERS - 2))]
                after = _resident(process)
                for each in readers:
                    each.close()
                print(
                    f"first state {first:.2f} s, again {again:.2f} s, state {size / 1000:.0f} kB, "
                    f"memory +{after - before:.0f} MB of {after:.0f} MB"
                )
            with _served(run) as (_, port):
                drawn = _drawn(port)
                print("drawn: no browser here" if drawn is None else f"drawn {drawn:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
