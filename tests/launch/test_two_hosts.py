"""A real run on two hosts, both of them this one: what is told of it, and what the tools say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from apart import command_apart
from ronde.doctor.run import examine
from ronde.report.run import read_run
from ronde.testing import forked
from ronde.trace.checkpoint_manifest import checkpoints_in

SCRIPT = """
import os, signal
import torch
import ronde

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    if step == 20 and ronde.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.ones(4, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
"""


def test_a_killed_rank_is_known_to_all_tools(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ronde", "run", "-H", "127.0.0.1:1,127.0.0.2:1"),
            *("--ssh-command", command_apart([run_dir, tmp_path / "saved"]), "--run-dir", str(run_dir)),
            *("--seed", "1", "--trace", "t.json", "--checkpoint", "saved", "--every", "6", "train.py"),
        ],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 137, done.stderr
    assert "rank 1 on 127.0.0.2 was killed by SIGKILL; logs of all ranks: " in done.stderr
    assert "cause: rank 1 was killed from outside (SIGKILL)" in done.stderr
    assert "after step 20, it was last seen at train.py:" in done.stderr
    evidence, found = examine(run_dir)
    assert (found.cause, found.rank, found.host) == ("killed", 1, "127.0.0.2")
    assert len(evidence.ranks) == 2
    again = forked.run(["doctor", "run"], directory=tmp_path)
    assert (again.returncode, again.stdout.splitlines()[0]) == (1, f"cause: {found.summary}")
    assert [host.name for host in evidence.hosts] == ["127.0.0.1", "127.0.0.2"]
    run = read_run(run_dir)
    assert [(each.rank, each.steps.steps, each.life) for each in run.ranks] == [
        (0, 20, "failed"),
        (1, 20, "gone"),
    ]
    assert run.start["script"] == "train.py"
    kinds = [event.kind for event in run.events if event.kind not in ("death", "notice", "checkpoint")]
    assert kinds == ["start", "end"]
    assert [step for step, _ in checkpoints_in(tmp_path / "saved")] == [18, 12]
    timeline = json.loads((tmp_path / "t.json").read_text())
    error = 1e3 * float(timeline["otherData"]["largest error between two hosts"].split()[0])
    events = [event for event in timeline["traceEvents"] if event.get("cat") == "step"]
    begun, ended = (
        [
            {
                event["args"]["step"]: event["ts"] + event["dur"] * after
                for event in events
                if event["pid"] == rank
            }
            for rank in (0, 1)
        ]
        for after in (0, 1)
    )
    # By one clock no rank ends a step before the other has begun it, for they wait for each other in it.
    for rank in (0, 1):
        both = ended[rank].keys() & begun[1 - rank].keys()
        assert len(both) >= 18
        for step in both:
            assert ended[rank][step] > begun[1 - rank][step] - error
