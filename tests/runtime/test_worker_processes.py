"""A script whose batches are sampled by processes of its own and come by one queue, as SASRec's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ronde.testing import forked

SCRIPT = """\
import sys
from multiprocessing import Process, Queue
import numpy as np
import torch

def sample_function(sequences, batch_size, result_queue, seed):
    np.random.seed(seed)
    def sample():
        sequence = sequences[np.random.randint(len(sequences))]
        start = np.random.randint(len(sequence) - 9)
        return sequence[start:start + 8], sequence[start + 1:start + 9], np.random.randint(1, 50, 8)
    while True:
        result_queue.put(list(zip(*[sample() for _ in range(batch_size)])))

class WarpSampler:
    def __init__(self, sequences, batch_size, n_workers):
        self.result_queue = Queue(maxsize=n_workers * 10)
        self.processors = []
        for number in range(n_workers):
            seed = np.random.randint(2e9)
            args = (sequences, batch_size, self.result_queue, seed)
            self.processors.append(Process(target=sample_function, args=args))
            self.processors[-1].daemon = True
            self.processors[-1].start()
    def next_batch(self):
        return self.result_queue.get()
    def close(self):
        for process in self.processors:
            process.terminate()
            process.join()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.Linear(16, 16)
    def forward(self, seq, pos, neg):
        features = torch.tanh(self.layer(self.items(seq)))
        return [(features * self.items(each)).sum(-1) for each in (pos, neg)]

np.random.seed(0)
torch.manual_seed(0)
sequences = np.random.randint(1, 50, (20, 30))
sampler = WarpSampler(sequences, batch_size=16, n_workers=int(sys.argv[1]))
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = torch.nn.BCEWithLogitsLoss()
for step in range(6):
    seq, pos, neg = (torch.as_tensor(np.array(each)) for each in sampler.next_batch())
    positive, negative = model(seq, pos, neg)
    loss = criterion(positive, torch.ones_like(positive)) + criterion(negative, torch.zeros_like(negative))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}")
sampler.close()
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def on_ranks(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = ["run", "--ranks", "2", "--run-dir", "logs", "--timeout", "60", "train.py", *arguments]
    return forked.run(command, directory=folder, timeout=100)


def losses(text: str) -> list[float]:
    return [float(line.removeprefix("loss ")) for line in text.splitlines() if line.startswith("loss ")]


def test_of_one_process_the_batches_are_those_of_plain_python(tmp_path: Path) -> None:
    done = on_ranks(tmp_path, SCRIPT, "1")
    assert done.returncode == 0, done.stderr
    plain = run(tmp_path, "train.py", "1")
    assert losses(done.stdout) == pytest.approx(losses(plain.stdout), abs=2e-6)
    assert len(losses(plain.stdout)) == 6
    assert "runs" not in done.stderr  # in parts, say


@pytest.mark.soak
def test_of_three_processes_all_ranks_have_the_same(tmp_path: Path) -> None:
    """In an order of chance, as in plain Python; every model call compares what it is given."""
    done = on_ranks(tmp_path, SCRIPT, "3")
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 6
    assert losses(done.stdout) == losses((tmp_path / "logs" / "rank-1.log").read_text())


OF_A_THREAD = """\
import os, queue, threading, torch
own = float("rank-1" in os.readlink("/proc/self/fd/1"))  # another on every rank
batches = queue.Queue()
threading.Thread(target=lambda: batches.put(torch.full((16, 4), 1 + own))).start()
torch.nn.Linear(4, 2)(batches.get()).sum().backward()
"""


def test_what_a_thread_gives_is_each_ranks_own_and_compared(tmp_path: Path) -> None:
    done = on_ranks(tmp_path, OF_A_THREAD)
    assert done.returncode == 1
    assert done.stderr.count("Linear on 16 rows (digest") == 2
