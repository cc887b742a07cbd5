"""Scripts that cannot run as they are, on real ranks: what the user reads behind their traceback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from errors.normal import normal
from ronde.verify.runs import Job, Start

TRAIN = """\
import torch
from torch.utils.data import DataLoader, Dataset
{before}
model = torch.nn.Linear(4, 2, device={device!r})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader({data}, 8{batch}):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DATA = "torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))"

COMMAND = (sys.executable, "-m", "ronde", "run", "--ranks", "2", "--run-dir", "logs")


def ended(host: Any, folder: Path, script: str) -> tuple[int, list[str]]:
    """The exit code on two ranks, and what rank 0 says on stderr, line by line."""
    (folder / "train.py").write_text(script)
    place = folder / "place"
    place.mkdir()
    job = Job(script="train.py", directory=folder)
    code = host.start(Start(job=job, ranks=2, place=place, directory=folder, environment=os.environ))
    return code, normal((place / "stderr").read_text(), folder).splitlines()


def run(folder: Path, script: str, *before: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [*before, *COMMAND, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_a_model_on_another_device(host: Any, tmp_path: Path) -> None:
    script = TRAIN.format(before="", device="meta", data=DATA, batch="")
    code, said = ended(host, tmp_path, script)
    assert code == 1
    assert said[:2] == ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>']
    assert said[-1] == (
        'ronde: tensors on the device "meta" have no values: leave that device out of the script, or call '
        'model.to_empty(device="cpu") and load the parameters'
    )
    assert not any("/ronde/" in line for line in said)


def test_a_batch_that_is_no_tensor(host: Any, tmp_path: Path) -> None:
    batch = ", collate_fn=lambda samples: ([x for x, _ in samples], torch.tensor([y for _, y in samples]))"
    code, said = ended(host, tmp_path, TRAIN.format(before="", device="cpu", data=DATA, batch=batch))
    assert code == 1
    assert said[:2] == ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>']
    assert said[-2:] == [
        "TypeError: linear(): argument 'input' (position 1) must be Tensor, not list",
        "ronde: a list was given where a tensor is needed: torch.stack makes one of tensors, "
        "torch.as_tensor of numbers or an array; a DataLoader does so by itself without collate_fn",
    ]


SAMPLES = """
class Sample:
    def __init__(self, index):
        self.inputs, self.target = torch.randn(4), index % 2
class Samples(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): return Sample(index)
"""


def test_samples_of_a_class(host: Any, tmp_path: Path) -> None:
    script = TRAIN.format(before=SAMPLES, device="cpu", data="Samples()", batch="")
    code, said = ended(host, tmp_path, script)
    assert code == 1
    assert said[-2:] == [
        "TypeError: default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        "found <class '__main__.Sample'>",
        "ronde: the samples of this data set are of a class that torch cannot make a batch of: return "
        "tensors, numbers, or tuples and dicts of them, or give the DataLoader a collate_fn",
    ]


def test_a_batch_of_words_is_no_mistake(host: Any, tmp_path: Path) -> None:
    """A model that makes its tensors itself."""
    words = """
class Words(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(100, 2)
    def forward(self, words): return self.bag(torch.tensor([[int(word)] for word in words]))
torch.nn.Linear = Words
"""
    data = "[(str(index), index % 2) for index in range(32)]"
    code, said = ended(host, tmp_path, TRAIN.format(before=words, device="cpu", data=data, batch=""))
    assert code == 0
    assert said[-1] == (
        "ronde: list: every rank loads whole batches, because its batches hold other values than one row of "
        "a tensor for each sample"
    )


DISTRIBUTED = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
loss = model(torch.full((1, 2), dist.get_rank() + 1.0)).sum()
loss.backward()
print(dist.get_world_size(), os.environ["RANK"], model.module.weight.grad[0].tolist())
dist.destroy_process_group()
"""
SPAWNED = """\
import os, torch.distributed as dist, torch.multiprocessing as mp

def work(rank):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "{port}"
    dist.init_process_group("gloo", rank=rank, world_size=2)

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def test_a_script_that_is_distributed_already(tmp_path: Path) -> None:
    done = run(tmp_path, DISTRIBUTED)
    assert (done.returncode, done.stdout) == (0, "2 0 [1.5, 1.5]\n")
    assert normal(done.stderr, tmp_path) == (
        "ronde: the script calls init_process_group: it runs as under torchrun, unchanged (use --native to "
        "say so from the start)\n"
    )


@pytest.mark.soak
def test_a_script_that_starts_ranks_itself(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    done = run(tmp_path, SPAWNED.format(port=port))
    assert done.returncode == 1
    advice = (
        "ronde: another program on this host has the address, a Unix socket's file was left there, or "
        "several ranks open it. Give each rank its own, PORT + ronde.rank(), or open it behind `if "
        "ronde.is_main():`. A script that starts ranks itself runs by python, or with --ranks 1\n"
    )
    assert normal(done.stderr, tmp_path).count(advice) == 1


PORT = """\
import sys, torch
from http.server import BaseHTTPRequestHandler, HTTPServer
with HTTPServer(("127.0.0.1", {port}), BaseHTTPRequestHandler):
    torch.nn.Linear(4, 2)(torch.ones(8, 4)).sum().backward()
"""


@pytest.mark.soak
def test_a_server_on_a_port(tmp_path: Path) -> None:
    """All ranks of a host but one are refused it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    done = run(tmp_path, PORT.format(port=port))
    said = normal(done.stderr, tmp_path)
    assert done.returncode == 1
    assert "\nOSError: [Errno 98] Address already in use\n" in said
    assert said.count("or several ranks open it. Give each rank its own") == 1


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.parametrize("size", ["64k", "1m"])
def test_little_shared_memory(tmp_path: Path, size: str) -> None:
    """At 64 KiB there is no place for a semaphore, at 1 MiB none for a batch; both are told of once."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace, which is not granted here")
    data = "torch.utils.data.TensorDataset(torch.randn(32, 20_000), torch.randint(2, (32,)))"
    script = TRAIN.format(before="", device="cpu", data=data, batch=", num_workers=1")
    mounted = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    namespace = ("unshare", "--mount", "sh", "-c", mounted, "sh")
    done = run(tmp_path, script.replace("Linear(4", "Linear(20_000"), *namespace)
    said = normal(done.stderr, tmp_path)
    assert done.returncode == 1, said
    assert said.count('Traceback (most recent call last):\n  File "train.py"') == 1
    advice = (
        r"^ronde: shared memory \(/dev/shm, [\d.]+ [KM]iB\) is too small for the batches that loader workers "
        r"hand over on 2 ranks: make it larger \(docker run --shm-size=8g\), or use a smaller num_workers$"
    )
    assert len(re.findall(advice, said, re.MULTILINE)) == 1
    assert said.count("logs of all ranks: DIR/logs\n") == 1
