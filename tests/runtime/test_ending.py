"""The end of a rank whose script has process groups of its own: that of plain Python, but for an abort."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ronde.verify.runs import Job, Start

# Rank 0 leaves two collectives behind. The first ends while its last exit handler keeps the interpreter to
# itself, past which plain Python is being finalized; the second when it lets go of the script. The threads
# that carry them out then let go of the mode under which they began, an object of Python's.
OUTLASTED = """\
import atexit, ctypes, gzip, os, threading, time
import torch, torch.distributed as dist

class Last:
    def __del__(self):
        os.mkdir("let go")

def come(when):
    while not os.path.exists(when):
        time.sleep(0.01)
    dist.all_reduce(torch.ones(2))

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    atexit._clear()
    atexit.register(ctypes.PyDLL(None).system, b"until [ -e came ]; do sleep 0.01; done; sleep 0.2")
    atexit.register(os.mkdir, "ending")
    atexit.register(print, "exit handler")
    last, log, packed = Last(), open("log", "w"), gzip.open("packed", "wt")
    log.write("logged")
    packed.write("packed")
    for _ in range(2):
        with torch.device("cpu"):
            dist.all_reduce(torch.ones(2), async_op=True)
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("end")
else:
    come("ending")
    os.mkdir("came")
    come("let go")
"""


def run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "ronde", "run", "--ranks", "2", "--run-dir", "logs", *words, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_collectives_that_outlast_the_script(tmp_path: Path) -> None:
    done = run(tmp_path, OUTLASTED, "--native", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\nthread\nexit handler\n", "")
    assert (tmp_path / "log").read_text() == "logged"
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"packed"


TRAINED = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
print(model.module.weight.grad[0].tolist())
"""


@pytest.mark.soak
@pytest.mark.parametrize("last_words", ["", "dist.destroy_process_group()\n"])
def test_no_run_of_many_under_load_is_aborted(tmp_path: Path, last_words: str) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        ended = [run(tmp_path, TRAINED + last_words, "--quiet") for _ in range(100)]
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert {(each.returncode, each.stdout, each.stderr) for each in ended} == {(0, "[1.5, 1.5]\n", "")}


OWN_GROUP = """\
import atexit, os, signal, sys
import ronde, torch.distributed as dist

place = {{"rank": ronde.rank(), "world_size": ronde.world_size()}}
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), **place)
dist.barrier()
atexit.register(print, "exit handler")
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, "(use --native to say so from the start)"),
        ("sys.exit(259)", 3, "(use --native to say so from the start)"),
        ("sys.exit('no such data set')", 1, "no such data set"),
        ("raise ValueError('wrong shape')", 1, "ValueError: wrong shape"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "KeyboardInterrupt"),
        (
            "sys.stdout = open('/dev/full', 'w'); print('lost')",
            120,
            "OSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_exit_codes_are_those_of_plain_python(
    host: Any, tmp_path: Path, end: str, code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(OWN_GROUP.format(end=end))
    place = tmp_path / "place"
    place.mkdir()
    job = Job(script="train.py", directory=tmp_path)
    ended = host.start(Start(job=job, ranks=2, place=place, directory=tmp_path, environment=os.environ))
    assert ended == code
    assert (place / "stderr").read_text().rstrip("\n").rpartition("\n")[2].endswith(said)
    assert (place / "stdout").read_text() == ("exit handler\n" if code != 120 else "")
