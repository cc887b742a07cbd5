"""Scripts that make what a host has once, a port and a named block, in plain Python and on ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ronde.verify.runs import Job, Start

# Every rank counts on its own server and in its own block what its children and its training do.
SCRIPT = """\
import json, multiprocessing, sys, threading, torch
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import shared_memory
from multiprocessing.managers import BaseManager
from urllib.request import urlopen

port, name = int(sys.argv[1]), sys.argv[2]
state = {"asked": 0}

class Metrics(BaseHTTPRequestHandler):
    def do_GET(self):
        state["asked"] += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(state).encode())
    def log_message(self, *_): pass

class Queue(BaseManager): pass
Queue.register("log", callable=list)

def produce(name, turns):
    block = shared_memory.SharedMemory(name)
    while turns.recv():
        block.buf[0] += 1
        turns.send(True)
    block.close()

context = multiprocessing.get_context("fork")
server = HTTPServer(("", port), Metrics)
thread = threading.Thread(target=server.serve_forever, args=(0.01,))
thread.start()
queue = Queue(("127.0.0.1", port + 1), b"key", ctx=context)
queue.start()
log = queue.log()
block = shared_memory.SharedMemory(name, create=True, size=4)
block.buf[:4] = bytes(4)
turns, theirs = context.Pipe()
child = context.Process(target=produce, args=(name, theirs))
child.start()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    turns.send(True)
    turns.recv()
    loss = model(torch.full((8, 4), float(block.buf[0]))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.append(step)
    state["loss"] = round(loss.item(), 3)
    print(server.server_address, queue.address, log.copy(), urlopen(f"http://localhost:{port}").read())
turns.send(False)
child.join()
queue.shutdown()
server.shutdown()
thread.join()
server.server_close()
block.close()
block.unlink()
"""


def start(host: Any, folder: Path, name: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code, and what is said on stdout and stderr."""
    place = folder / name
    place.mkdir()
    job = Job(script="train.py", arguments=arguments, directory=folder)
    code = host.start(Start(job=job, ranks=2, place=place, directory=folder, environment=os.environ))
    return code, (place / "stdout").read_text(), (place / "stderr").read_text()


@pytest.fixture
def port() -> int:
    """Free, as is the next one, or they were a moment ago."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return min(probe.getsockname()[1], 65_000)


def test_every_rank_has_its_own(host: Any, tmp_path: Path, port: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    name = f"block_{tmp_path.name}_{port}"
    command = [sys.executable, "train.py", str(port), name]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (plain.returncode, plain.stdout.count("\n")) == (0, 3), plain.stderr
    code, out, said = start(host, tmp_path, "ranks", str(port), name)
    assert (code, out) == (0, plain.stdout), said
    notes = [line.partition(":")[0] for line in said.removeprefix("ronde: ").split("\nronde: ")][-2:]
    assert notes == [
        f"the shared memory block {name!r} is the main rank's",
        f"ports {port}, {port + 1} are the main rank's",
    ]


TAKEN = """\
import socket, sys, torch
def serve(port):
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        if len(sys.argv) > 2:
            raise
        return serve(port + 1)
with serve(int(sys.argv[1])) as server:
    torch.nn.Linear(4, 2)(torch.ones(8, 4)).sum().backward()
    print(server.getsockname()[1] > int(sys.argv[1]))
"""


def test_a_port_that_another_program_has(host: Any, tmp_path: Path) -> None:
    """The main rank's error is that of plain Python, and no rank waits."""
    (tmp_path / "train.py").write_text(TAKEN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        code, out, said = start(host, tmp_path, "next", taken)
        assert (code, out) == (0, "True\n"), said
        code, out, said = start(host, tmp_path, "fails", taken, "at once")
    assert (code, out) == (1, "")
    assert "OSError: [Errno 98] Address already in use" in said
    assert said.count("\nronde: another program on this host has the address") == 1
