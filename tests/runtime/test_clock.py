"""Scripts that go by the clock, and one that reads it unequally often on its ranks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ronde.testing import forked

SCRIPT = """\
import datetime, time, torch
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
print(f"{turns} turns, {steps} steps, loss {loss.item():.6f}")
"""

# As of a thread that is another number of turns late on each rank.
WAITING = """\
import os, time, torch
start = time.time()
for _ in range(2 + 3 * int('rank-1' in os.readlink('/proc/self/fd/1'))):
    assert time.time() < start + 1000
torch.nn.Linear(4, 2)(torch.randn(8, 4)).sum().backward()
"""


def _run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return forked.run(["run", "--ranks", "2", "--run-dir", "logs", "train.py"], directory=folder)


def test_every_rank_stops_in_time_after_the_same_turn(tmp_path: Path) -> None:
    done = _run(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    first, second = (
        re.findall(
            r"^at.*$|^\d+ turns.*$", (tmp_path / "logs" / f"rank-{rank}.log").read_text(), re.MULTILINE
        )
        for rank in range(2)
    )
    assert len(first) == 2
    assert first == second


def test_a_loop_that_turns_unequally_often_ends_the_run(tmp_path: Path) -> None:
    done = _run(tmp_path, WAITING)
    assert done.returncode == 1
    assert "the ranks have diverged" in done.stderr
    assert "rank 1 at train.py:4: broadcast" in done.stderr
