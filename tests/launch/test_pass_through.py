"""Rank 0's streams are the user's, byte for byte; every rank's output is in its log."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from .conftest import BOUND_S

EVERY_BYTE = bytes(range(256)) * 4000

WRITE_ALL = """
data = sys.stdin.buffer.read()
if rank == 0:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
    sys.stderr.buffer.write(data[::-1])
else:
    print("rank", rank, len(data))
    os.write(2, b"written below python\\n")
"""


def test_streams_pass_byte_for_byte(experiment: Any) -> None:
    process = experiment.start(WRITE_ALL)
    out, err = process.communicate(EVERY_BYTE, timeout=BOUND_S)
    assert process.returncode == 0
    assert out == EVERY_BYTE
    assert err == EVERY_BYTE[::-1]
    assert sorted((experiment.run_dir / "rank-0.log").read_bytes()) == sorted(EVERY_BYTE * 2)
    assert sorted(experiment.log(1).splitlines()) == ["rank 1 0", "written below python"]


def test_one_file_for_both_keeps_the_order(experiment: Any, tmp_path: Path) -> None:
    command = experiment.command("for i in range(300):\n    os.write(1 + i % 2, f'{i}\\n'.encode())", ranks=1)
    target = tmp_path / "both.txt"
    with target.open("wb") as stream:
        subprocess.run(
            command, env=experiment.environment(), stdout=stream, stderr=subprocess.STDOUT, check=True
        )
    assert target.read_text().split() == [str(i) for i in range(300)]


def test_a_reader_that_goes_away_is_the_scripts_business(experiment: Any) -> None:
    """As in `python train.py | head -1`: the script meets the broken pipe."""
    process = experiment.start(
        """
        try:
            while True:
                print("line " * 1000, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(9)
        """,
        ranks=1,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert experiment.finish(process).code == 9


def test_a_closed_stdout_does_not_let_output_into_other_files(experiment: Any, tmp_path: Path) -> None:
    command = experiment.command("print('lost'); print('kept', file=sys.stderr)", ranks=1)
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(
        shell, env=experiment.environment(), stderr=subprocess.PIPE, timeout=BOUND_S, check=True
    )
    assert done.stderr == b"kept\n"
    assert not (tmp_path / "run" / "store").exists()


def test_environment_of_the_ranks(experiment: Any) -> None:
    cores = len(os.sched_getaffinity(0))
    script = """
    names = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    print([os.environ.get(name) for name in names])
    """
    clean = {"OMP_NUM_THREADS": "", "PYTHONHASHSEED": "random"}
    assert experiment.run(script, ranks=1, **clean).out == b"['', '0', None, None, None, None]\n"
    shared = str(max(1, cores // 2))
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    assert (
        experiment.run(script, **clean, **torchrun).out.decode()
        == f"['{shared}', '0', None, None, None, None]\n"
    )
    own = experiment.run(script, OMP_NUM_THREADS="3", PYTHONHASHSEED="12").out
    assert own == b"['3', '12', None, None, None, None]\n"
