"""Scripts that read the clock unequally often on their ranks, and go by it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = """\
import datetime, os, threading, time, torch
own = int('rank-1' in os.readlink('/proc/self/fd/1'))

def wait(turns):
    '''Until a thread has filled a cache, which takes so many turns.'''
    cache, turn = [], threading.Barrier(2)
    def fill():
        for number in range(turns):
            turn.wait()
            if number == turns - 1:
                cache.append(0)
            turn.wait()
    thread = threading.Thread(target=fill)
    thread.start()
    start = time.time()
    while not cache:
        turn.wait()
        turn.wait()
        if time.time() > start + 1000:
            raise TimeoutError
    thread.join()

wait(2 + 3 * own)
wait(5 - 3 * own)
print("at", datetime.datetime.now().isoformat())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
end, steps, turns = time.monotonic() + 0.05, 0, 0
while time.monotonic() < end:
    turns += 1
    if turns % 3 == 0:
        steps += 1
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
wait(2 + 3 * own)
print(f"{turns} turns, {steps} steps, loss {loss.item():.6f}")
"""

LEAVING = """\
import os, time, torch
torch.nn.Linear(4, 2)(torch.randn(8, 4)).sum().backward()
if 'rank-1' not in os.readlink('/proc/self/fd/1'):
    os._exit(0)
end = time.time() + 1000
while time.time() < end:
    pass
"""


def _run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "ronde", "run", "--ranks", "2", "--run-dir", "logs", "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_loop_that_waits_turns_as_often_as_it_does(tmp_path: Path) -> None:
    done = _run(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    first, second = (
        re.findall(r"^\d+ turns.*$", (tmp_path / "logs" / f"rank-{rank}.log").read_text(), re.MULTILINE)
        for rank in range(2)
    )
    assert len(first) == 1
    assert first == second


def test_where_a_rank_waits_for_a_reading_of_one_that_is_gone_is_said(tmp_path: Path) -> None:
    done = _run(tmp_path, LEAVING)
    assert done.returncode == 1
    assert (
        "ronde: rank 0 came to the end of the script while rank 1 waited for it at train.py:5 "
        "(a reading of the clock); "
    ) in done.stderr
