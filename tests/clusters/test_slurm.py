"""Ranks under a real Slurm: a controller and two nodes on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ronde.cluster.reach import candidates

from .training import losses, plain_losses

pytestmark = [pytest.mark.root, pytest.mark.cluster]

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
SlurmctldPort=17010
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=node[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17011-17012] CPUs=4 RealMemory=1000
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
"""
NEEDED = ("slurmctld", "slurmd", "srun", "salloc", "munged", "unshare")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def slurm() -> Iterator[Run]:
    """`slurm(place, *words)` runs a command of Slurm's with its cluster up; it is down behind the test."""
    for tool in NEEDED:
        if shutil.which(tool, path=PATH) is None:
            pytest.skip(f"{tool} is missing; it is in slurm-wlm, munge or util-linux")
    place = Path("/tmp/ronde-slurm")  # a socket's path must be short, and munge trusts no directory of others
    shutil.rmtree(place, ignore_errors=True)
    for name in ("state", "spool.node1", "spool.node2"):
        (place / name).mkdir(parents=True)
    place.chmod(0o755)
    (place / "slurm.conf").write_text(CONFIGURATION.format(place=place))
    # The nodes' names lead here, in a mount namespace of their own; a name of the loopback is refused.
    address = candidates(["192.0.2.1"])[0]
    (place / "hosts").write_text(Path("/etc/hosts").read_text() + f"\n{address} node1 node2\n")
    key = place / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {
        **os.environ,
        "PATH": PATH,
        "SLURM_CONF": str(place / "slurm.conf"),
        "OMP_NUM_THREADS": "1",
    }
    files = {
        "key": key,
        "socket": place / "munge.socket",
        "pid": place / "munge.pid",
        "log": place / "munge.log",
    }
    munge = ["munged", "--force", f"--seed-file={place}/munge.seed"]
    for name, path in files.items():
        munge.append(f"--{'socket' if name == 'socket' else name + '-file'}={path}")
    inside = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(place / "hosts")]
    subprocess.run(munge, env=environment, check=True)
    for words in (["slurmctld", "-c"], ["slurmd", "-N", "node1"], ["slurmd", "-N", "node2"]):
        subprocess.run([*inside, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 30
    state = ["sinfo", "--noheader", "--format=%T %D"]
    while subprocess.run(state, env=environment, capture_output=True, text=True).stdout.strip() != "idle 2":
        assert time.monotonic() < end, (place / "slurmctld.log").read_text()
        time.sleep(0.2)

    def run(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*inside, *words],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )

    yield run
    for file in [*place.glob("*.pid")]:
        os.kill(int(file.read_text()), signal.SIGTERM)
    while any(place.glob("slurm*.pid")):
        time.sleep(0.05)
    shutil.rmtree(place, ignore_errors=True)


RONDE = (sys.executable, "-m", "ronde", "run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("srun", "-N2", "-n3"), "3 ranks on cpu, started by srun"),
        (("salloc", "-N2", "-n3"), "3 ranks on node1:2, node2:1 (from Slurm's allocation)"),
    ],
)
def test_one_devices_numbers(
    slurm: Run,
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    done = slurm(tmp_path, *words, *RONDE, "train.py")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert losses(done.stdout) == plain


def test_a_rank_that_fails_in_an_allocation_is_named_with_its_node(slurm: Run, tmp_path: Path) -> None:
    script = "import os, time\nif os.environ['RANK'] == '2': raise ValueError('of node2')\ntime.sleep(100)\n"
    (tmp_path / "fail.py").write_text(script)
    done = slurm(tmp_path, "salloc", "-N2", "-n3", *RONDE, "--native", "fail.py")
    assert done.returncode == 1
    assert "rank 2 on node2 failed: ValueError: of node2" in done.stderr
