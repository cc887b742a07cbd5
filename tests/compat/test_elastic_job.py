"""`ronde horovodrun --min-np`: real jobs on names of this host that come and go."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# It trains until there is a file `end`. What a step has added up is known from step and ranks.
TRAINING = """
import os
import torch
import horovod.torch as hvd

hvd.init()
print("pid", os.getpid(), flush=True)
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(3, 2).double()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), named_parameters=model.named_parameters()
)
state = hvd.elastic.TorchState(model, optimizer, step=0, ranks=[])
state.register_reset_callbacks([lambda: print("reset", hvd.rank(), "of", hvd.size(), flush=True)])

@hvd.elastic.run
def train(state):
    print("begins with", hvd.size(), "at", state.step > 0, flush=True)
    over = False
    while not over:
        optimizer.zero_grad()
        model(torch.full((2, 3), float(hvd.rank()), dtype=torch.double)).sum().backward()
        optimizer.step()
        state.step += 1
        state.ranks.append(hvd.size())
        over = hvd.allreduce(torch.tensor(float(os.path.exists("end"))), op=hvd.Max).item()
        if state.step % 5 == 0 or over:
            state.commit()

train(state)
total = sum(each.sum().item() for each in model.parameters())
assert hvd.allgather_object((total, state.ranks)) == [(total, state.ranks)] * hvd.size()
assert len(state.ranks) == state.step
print("ends with", hvd.rank(), "of", hvd.size(), sorted(set(state.ranks)), flush=True)
"""


class ElasticJob:
    """A job, what it prints, and the hosts that it is told of."""

    def __init__(self, place: Path, hosts: str, *words: str, script: str = TRAINING) -> None:
        self._place = place
        self.name(hosts)
        (place / "train.py").write_text(script)
        discovery = place / "discover"
        discovery.write_text("#!/bin/sh\ncat hosts\n")
        discovery.chmod(0o755)
        environment = {**os.environ, "XDG_STATE_HOME": str(place / "state")}
        command = [sys.executable, "-m", "ronde", "horovodrun", "--host-discovery-script", "./discover"]
        with (place / "said").open("w") as stream:
            self.process = subprocess.Popen(
                [*command, *words, sys.executable, "train.py"],
                cwd=place,
                env=environment,
                stdout=stream,
                stderr=stream,
            )

    def name(self, hosts: str) -> None:
        """From now on these hosts are there."""
        new = self._place / "hosts.new"
        new.write_text(hosts.replace(",", "\n") + "\n")
        new.rename(self._place / "hosts")

    def end(self) -> None:
        """Let the script come to its end."""
        (self._place / "end").touch()

    @property
    def said(self) -> str:
        return (self._place / "said").read_text()

    def await_words(self, pattern: str) -> str:
        until = time.monotonic() + 60
        while (match := re.search(pattern, self.said)) is None:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until, self.said
            time.sleep(0.02)
        return match[match.lastindex or 0]

    def pid(self, label: int) -> int:
        return int(self.await_words(rf"\[{label}\]<stdout>:pid (\d+)\n"))


@pytest.fixture
def jobs() -> Iterator[list[ElasticJob]]:
    made: list[ElasticJob] = []
    yield made
    for job in made:
        job.process.kill()
        job.process.wait()


def test_ranks_are_lost_come_and_leave(tmp_path: Path, jobs: list[ElasticJob]) -> None:
    job = ElasticJob(tmp_path, "127.0.0.1:1,127.0.0.2:1", "-np", "2", "--min-np", "1")
    jobs.append(job)
    job.await_words("begins with 2 at False")
    os.kill(job.pid(0), signal.SIGKILL)
    job.await_words(r"ronde: note\[R704\]: going on with 1 rank on 127\.0\.0\.2:1")
    job.await_words(r"\[1\]<stdout>:begins with 1 at (True|False)")
    job.name("127.0.0.1:1,127.0.0.2:1,127.0.0.3:1")  # the first has failed, and is not used again
    job.await_words(r"\[2\]<stdout>:begins with 2 at True")
    assert r"[1]<stdout>:reset 0 of 2" in job.said
    job.name("127.0.0.3:1")
    job.await_words(r"\[2\]<stdout>:begins with 1 at True")
    job.await_words(r"\[1\]<stderr>:ronde: note\[R704\]: the job continues without this rank")
    job.end()
    assert job.process.wait(60) == 0, job.said
    assert "[2]<stdout>:ends with 0 of 1 [1, 2]" in job.said
    assert "Traceback" not in job.said


@pytest.mark.soak
def test_a_job_whose_ranks_all_fail_ends_at_once(tmp_path: Path, jobs: list[ElasticJob]) -> None:
    script = "import horovod.torch as hvd\nhvd.init()\nraise SystemExit(7)\n"
    hosts = "127.0.0.1:1,127.0.0.2:1"
    job = ElasticJob(tmp_path, hosts, "-np", "2", "--min-np", "1", script=script)
    jobs.append(job)
    assert job.process.wait(60) == 7, job.said


@pytest.mark.soak
def test_one_rank_becomes_two_and_another_takes_its_place(tmp_path: Path, jobs: list[ElasticJob]) -> None:
    job = ElasticJob(tmp_path, "127.0.0.1:1", "-np", "1", "--min-np", "1")
    jobs.append(job)
    job.await_words("begins with 1 at False")
    job.name("127.0.0.1:1,127.0.0.2:1")
    job.await_words(r"\[1\]<stdout>:begins with 2 at True")
    job.name("127.0.0.3:1")  # those that know the training stay until it knows it
    job.await_words(r"\[2\]<stdout>:begins with \d at True")
    job.await_words("going on with 1 rank on 127.0.0.3:1")
    job.end()
    assert job.process.wait(60) == 0, job.said
    assert "[2]<stdout>:ends with 0 of 1 [1, 2" in job.said
    assert job.said.count("the job continues without this rank") == 2


@pytest.mark.soak
def test_slots_of_a_host_become_more_and_fewer(tmp_path: Path, jobs: list[ElasticJob]) -> None:
    job = ElasticJob(tmp_path, "127.0.0.1:2,127.0.0.2:1", "-np", "2", "--min-np", "1", "--max-np", "4")
    jobs.append(job)
    job.await_words("begins with 3 at False")
    job.name("127.0.0.1:3,127.0.0.2:1")
    job.await_words(r"\[3\]<stdout>:begins with 4 at True")
    assert "[2]<stdout>:reset 3 of 4" in job.said  # ranks of a host are neighbours
    job.name("127.0.0.1:1,127.0.0.2:1")
    job.await_words(r"\[2\]<stdout>:begins with 2 at True")
    job.end()
    assert job.process.wait(60) == 0, job.said
    assert job.said.count("the job continues without this rank") == 2


@pytest.mark.soak
def test_too_few_ranks_wait_for_a_host_that_may_be_used_again(tmp_path: Path, jobs: list[ElasticJob]) -> None:
    words = ("-np", "2", "--min-np", "2", "--blacklist-cooldown-range", "1", "4", "--reset-limit", "1")
    job = ElasticJob(tmp_path, "127.0.0.1:1,127.0.0.2:1", *words)
    jobs.append(job)
    job.await_words("begins with 2 at False")
    os.kill(job.pid(1), signal.SIGKILL)
    job.await_words(r"ronde: note\[R703\]: 1 of at least 2 slots are there; waiting for hosts")
    job.await_words(r"\[2\]<stdout>:begins with 2")
    os.kill(job.pid(2), signal.SIGKILL)
    assert job.process.wait(60) == 1
    assert "ranks have been reset 1 times, and --reset-limit allows no more" in job.said


@pytest.mark.soak
def test_nobody_comes_for_too_long(tmp_path: Path, jobs: list[ElasticJob]) -> None:
    job = ElasticJob(tmp_path, "127.0.0.1:1", "-np", "2", "--min-np", "1", "--elastic-timeout", "2")
    jobs.append(job)
    assert job.process.wait(60) == 1
    assert "1 of at least 2 slots are there after 2 s; start hosts, or lower --min-np" in job.said


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_nothing_outlives_the_driver(
    tmp_path: Path, jobs: list[ElasticJob], number: signal.Signals, code: int
) -> None:
    job = ElasticJob(tmp_path, "127.0.0.1:1,127.0.0.2:1", "-np", "2", "--min-np", "1")
    jobs.append(job)
    job.await_words("begins with 2 at False")
    pids = [job.pid(label) for label in range(2)]
    job.process.send_signal(number)
    assert job.process.wait(60) == code
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/stat").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.02)
