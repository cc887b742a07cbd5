"""`ronde horovodrun` starts real scripts."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ronde.cli.entry import main
from ronde.cli.horovodrun import _forwarded
from ronde.compat.place import read_place
from ronde.errors import LaunchError
from ronde.testing import forked

SCRIPT = """
import json, os, sys
import torch
import horovod.torch as hvd
from horovod.torch.mpi_ops import Average, allreduce_async
import horovod

hvd.init()
assert horovod.__version__ == "0.28.1+ronde"
assert hvd.rank() == int(os.environ["HOROVOD_RANK"])
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * hvd.rank()).sum().backward()
    optimizer.step()
total = sum(each.sum().item() for each in model.parameters())
assert hvd.allgather_object(total) == [total] * hvd.size()
print(json.dumps(sys.argv[1:]), hvd.size(), file=sys.stderr if hvd.rank() else sys.stdout)
"""
# Rank 1 comes three seconds late to a collective, which is no start; then it is killed.
SLOW_THEN_KILLED = """
import os, signal, time
import torch
import horovod.torch as hvd

hvd.init()
if hvd.rank() == 1:
    time.sleep(3)
print("sum", hvd.allreduce(torch.ones(2), name="first", op=hvd.Sum).tolist(), flush=True)
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
begun = time.monotonic()
try:
    hvd.allreduce(torch.ones(2), name="second")
except hvd.HorovodInternalError as error:
    print("told:", error, flush=True)
    print("soon:", time.monotonic() - begun < 1, flush=True)
"""

ABSENT = """
import signal
import os
import horovod.torch as hvd

if os.environ["HOROVOD_RANK"] == "1":
    signal.pause()
hvd.init()
"""
# What a start has taken is given back by shutdown, and not by the garbage collector some day.
AGAIN_AND_AGAIN = """
import gc
import os
import threading
import torch
import horovod.torch as hvd

def cycles(count):
    for _ in range(count):
        hvd.init()
        assert hvd.allreduce(torch.ones(1000), name="x", op=hvd.Sum)[0] == hvd.size()
        hvd.shutdown()

def held():
    maps = open("/proc/self/maps").read().count("memfd:ronde")
    return len(os.listdir("/proc/self/fd")), maps, threading.active_count()

cycles(3)
gc.collect()
gc.disable()
before = held()
cycles(int(os.environ["CYCLES"]))
print(held() == before, before, held())
"""


def run(tmp_path: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(script)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    return forked.run(["horovodrun", *words], directory=tmp_path, environment=environment)


@pytest.mark.parametrize(
    "hosts",
    [pytest.param((), marks=pytest.mark.soak), ("-H", "127.0.0.1:1,127.0.0.2:1")],
    ids=["here", "two hosts"],
)
def test_a_script_is_run_as_it_is(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    timeline = tmp_path / "t.json"
    words = ("-np", "2", *hosts, "--cycle-time-ms", "3", "--timeline-filename", str(timeline))
    done = run(tmp_path, SCRIPT, *words, sys.executable, "train.py", "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == '[0]<stdout>:["--lr", "1"] 2\n'
    assert '[1]<stderr>:["--lr", "1"] 2\n' in done.stderr
    assert "ronde: note[R707]: no effect here: --cycle-time-ms\n" in done.stderr
    events = ast.literal_eval(timeline.read_text())
    assert any(event.get("pid") == "allreduce.weight" for event in events)


@pytest.mark.parametrize("cycles", [10, pytest.param(200, marks=pytest.mark.soak)])
def test_starts_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cycles: int) -> None:
    monkeypatch.setenv("CYCLES", str(cycles))
    done = run(tmp_path, AGAIN_AND_AGAIN, "-np", "3", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("True") == 3, done.stdout


def test_a_late_rank_is_waited_for_and_a_killed_one_is_told_to_the_others(tmp_path: Path) -> None:
    words = ("-np", "2", "--start-timeout", "2")
    done = run(tmp_path, SLOW_THEN_KILLED, *words, sys.executable, "train.py")
    assert done.returncode != 0
    assert "[0]<stdout>:sum [2.0, 2.0]" in done.stdout
    assert "[0]<stdout>:told: 'allreduce.second' has failed: rank 1 has ended" in done.stdout
    assert "[0]<stdout>:soon: True" in done.stdout


def test_a_rank_that_does_not_come_is_named_in_time(tmp_path: Path) -> None:
    done = run(tmp_path, ABSENT, "-np", "2", "--start-timeout", "2", sys.executable, "train.py")
    assert done.returncode != 0
    assert "ranks [1] have not called init() within 2 s; all must call it" in done.stderr


def test_other_hosts_are_told_what_options_say() -> None:
    told = _forwarded({"HOROVOD_TIMELINE": "t", "GLOO_SOCKET_IFNAME": "eth1", "HOME": "/root"})
    assert told == ["HOROVOD_TIMELINE", "GLOO_SOCKET_IFNAME"]


def test_plain_python_does_not_see_it() -> None:
    code = "import importlib.util as u, ronde; assert u.find_spec('horovod') is None"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_launcher_is_refused() -> None:
    assert read_place({}).size == 1
    with pytest.raises(LaunchError, match="torchrun has started 2 ranks"):
        read_place({"RANK": "0", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-np", "0", "python", "x.py"], "-np 0 is not a number from 1"),
        (["-np", "2"], "no command is given"),
        (["python", "x.py"], "-np N, the number of ranks, is missing"),
        (["-np", "2", "--jsrun", "python", "x.py"], "--jsrun: ranks are started by ronde"),
        (["-np", "2", "--min-np", "1", "python", "x.py"], "hosts that come and go; name them by"),
        (["-np", "1", "--min-np", "2", "-H", "a:2", "python", "x.py"], "-np 1 is not between --min-np 2"),
        (["--min-np", "3", "--max-np", "2", "-H", "a:2", "python", "x.py"], "more than --max-np 2"),
        (["-np", "2", "--reset-limit", "2", "python", "x.py"], "--reset-limit: it applies to hosts"),
        (
            ["-np", "2", "-H", "a:2", "--slots", "2", "python", "x.py"],
            "--slots-per-host 2 is for --host-disc",
        ),
        (["--max-np", "2", "-H", "a:2", "python", "x.py"], "--min-np N, the least number of ranks"),
        (["-np", "3", "-H", "localhost:2", "python", "x.py"], "more than the 2 slots of localhost:2"),
    ],
)
def test_mistakes_cost_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["horovodrun", *words])
    assert end.value.code == 2
    assert told in capsys.readouterr().err
