"""`mpirun -np N ronde run train.py` by the real ones."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .training import losses, plain_losses

pytestmark = pytest.mark.cluster

# Of Debian's packages openmpi-bin and mpich, and of the wheel impi-rt beside the interpreter.
COMMANDS = {
    "Open MPI": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np"],
    "MPICH": ["mpiexec.mpich", "-np"],
    "Intel MPI": [str(Path(sys.executable).with_name("mpiexec.hydra")), "-np"],
}


def mpirun(name: str, place: Path, ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = COMMANDS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is missing")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HYDRA_LAUNCHER": "fork"}
    return subprocess.run(
        [*command, str(ranks), sys.executable, "-m", "ronde", "run", *words],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_one_devices_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    done = mpirun(name, tmp_path, 3, "train.py")
    assert done.returncode == 0, done.stderr
    assert f"3 ranks on cpu, started by mpirun of {name}" in done.stderr
    assert losses(done.stdout) == plain


def test_a_script_does_not_see_mpi_unless_it_is_distributed_itself(tmp_path: Path) -> None:
    script = "import os; print('size', os.environ.get('PMI_SIZE'), os.environ.get('WORLD_SIZE'), flush=True)"
    (tmp_path / "look.py").write_text(script)
    assert mpirun("MPICH", tmp_path, 2, "look.py").stdout == "size None None\n"
    assert mpirun("MPICH", tmp_path, 2, "--native", "look.py").stdout == "size 2 2\n"


def test_a_held_port_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    with socket.create_server(("", 0)) as other, pytest.MonkeyPatch.context() as patch:
        port = str(other.getsockname()[1])
        patch.setenv("MASTER_PORT", port)
        done = mpirun("Open MPI", tmp_path, 2, "empty.py")
    assert done.returncode
    assert f"port {port}, where the ranks of this job meet, cannot be opened (Address" in done.stderr
