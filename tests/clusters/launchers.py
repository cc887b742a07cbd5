"""Launchers of two hosts, which are network namespaces of this one: ssh, Slurm, Open MPI, MPICH and Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from ronde.testing.hosts import Host, Network

__all__ = [
    "LAUNCHERS",
    "RONDE",
    "SSH_PORT",
    "Launcher",
    "await_that",
    "processes",
    "ray_cluster",
    "slurm_cluster",
    "ssh_servers",
    "write_key",
]

RONDE = (sys.executable, "-m", "ronde", "run")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
SSH_PORT = "2222"
# In the command line of a rank. Without its daemon it goes on under srun and MPICH.
RANK = "runtime.worker"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launcher:
    """A way to three ranks: two on the first host, one on the second.

    Attributes:
        words: the command before the options of `ronde run`.
        daemons: words in the command lines of the processes without which the second host is lost.
        lost: what the user reads when they are killed.
        environment: variables of the command.
        mend: makes the second host usable again.
    """

    words: Sequence[str]
    daemons: Sequence[str]
    lost: str
    environment: Mapping[str, str]
    mend: Callable[[], None] = lambda: None


def need(tool: str, package: str) -> str:
    """Return the path of a command, or skip the test."""
    found = shutil.which(tool, path=PATH)
    if found is None:
        pytest.skip(f"{tool} is missing; it is in the package {package}")
    return found


def processes(host: Host) -> dict[int, str]:
    """Return the command lines of a host's processes, by their numbers here."""
    space = os.readlink(f"/proc/{host.command([])[2]}/ns/pid")
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):  # it has ended meanwhile, or long ago
            if os.readlink(f"/proc/{process.pid}/ns/pid") == space:
                found[process.pid] = " ".join([process.name(), *process.cmdline()])
    return found


def call(host: Host, words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command on a host, and return what it prints."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": environment}
    process = host.popen(words, stdin=subprocess.DEVNULL, **options)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said
    return said


def write_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


@contextlib.contextmanager
def ssh_servers(network: Network, place: Path) -> Iterator[str]:
    """Run an ssh server on each host; yields the words that start ssh with their key."""
    sshd = need("sshd", "openssh-server")
    for name in ("host-key", "key"):
        write_key(place / name)
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "HostKey": place / "host-key",
        "AuthorizedKeysFile": place / "key.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "PermitRootLogin": "yes",
    }
    words = [sshd, "-D", "-e", "-p", SSH_PORT, "-f", "/dev/null"]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    servers: list[subprocess.Popen[str]] = []
    for host in network.hosts:
        with open(place / f"{host.name}.sshd", "w") as log:
            servers.append(host.popen(words, stdout=log, stderr=log))
    try:
        for host in network.hosts:
            log = place / f"{host.name}.sshd"
            await_that(lambda log=log: "Server listening" in log.read_text(), log.read_text)
        yield (
            f"ssh -i {place / 'key'} -oIdentitiesOnly=yes -oStrictHostKeyChecking=no "
            "-oUserKnownHostsFile=/dev/null -oLogLevel=ERROR"
        )
    finally:
        for server in servers:
            server.kill()
            server.wait()


def await_that(holds: Callable[[], bool], said: Callable[[], str], within: float = 60) -> None:
    """Wait until it holds; `said` tells why it does not."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, said()
        time.sleep(0.05)


SLURM = """
ClusterName=test
SlurmctldHost=host-1({first})
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
SlurmdTimeout=10
NodeName=host-1 NodeAddr={first} Port=17011 CPUs=4 RealMemory=1000
NodeName=host-2 NodeAddr={second} Port=17012 CPUs=4 RealMemory=1000
PartitionName=main Nodes=host-[1-2] Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm_cluster(network: Network) -> Iterator[tuple[Mapping[str, str], Callable[[], None]]]:
    """Run Slurm with two nodes; yields its commands' environment, and what starts the second node."""
    for tool in ("slurmctld", "slurmd", "srun", "salloc"):
        need(tool, "slurm-wlm")
    need("munged", "munge")
    place = Path("/tmp/ronde-slurm")  # a socket's path must be short, and munge trusts no directory of others
    shutil.rmtree(place, ignore_errors=True)
    for name in ("state", "spool.host-1", "spool.host-2"):
        (place / name).mkdir(parents=True)
    place.chmod(0o755)
    first, second = network.hosts
    (place / "slurm.conf").write_text(SLURM.format(place=place, first=first.address, second=second.address))
    key = place / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {
        **os.environ,
        "PATH": PATH,
        "SLURM_CONF": str(place / "slurm.conf"),
        "OMP_NUM_THREADS": "1",
    }
    munge = ["munged", "--force", f"--seed-file={place}/munge.seed", f"--socket={place}/munge.socket"]
    munge += [f"--{name}-file={place}/munge.{name}" for name in ("key", "pid", "log")]
    log = place / "slurmctld.log"

    def start_node(host: Host) -> None:
        start_quietly(host, ["slurmd", "-N", host.name], environment, place / "start.log")

    def start_second() -> None:
        start_node(second)
        await_that(is_idle, log.read_text)

    def is_idle() -> bool:
        return call(first, ["sinfo", "--noheader", "--format=%T %D"], environment).strip() == "idle 2"

    for words in (munge, ["slurmctld", "-c"]):
        start_quietly(first, words, environment, place / "start.log")
    start_node(first)
    start_second()
    try:
        yield environment, start_second
    finally:
        network.close()  # its daemons write there
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def ray_cluster(network: Network, place: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run Ray with a node on each host; yields its address, and what starts the second node."""
    command = need(str(Path(sys.executable).with_name("ray")), "ray")
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    first, second = network.hosts
    files = Path("/tmp/ronde-ray")  # a socket's path must be short
    files.mkdir(exist_ok=True)
    for host in network.hosts:
        # Nodes of two hosts do not share these files, and Ray asks for the way out to know its own address.
        call(host, ["mount", "-t", "tmpfs", "tmpfs", str(files)], environment)
        call(host, ["ip", "route", "add", "default", "dev", "eth0"], environment)
    address = f"{first.address}:6399"
    common = [command, "start", "--disable-usage-stats", "--num-gpus", "0"]

    def start_second() -> None:
        words = [*common, "--address", address, "--node-ip-address", second.address, "--num-cpus", "1"]
        start_quietly(second, words, environment, place / "ray-2.log")

    head = ["--head", "--port", "6399", "--node-ip-address", first.address, "--temp-dir", str(files)]
    words = [*common, *head, "--num-cpus", "2", "--include-dashboard", "false"]
    start_quietly(first, words, environment, place / "ray-1.log")
    start_second()
    yield address, start_second


def start_quietly(host: Host, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Start what goes to the background, where it keeps its streams open."""
    with open(log, "w") as file:
        process = host.popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    assert process.wait(100) == 0, log.read_text()


def own_ssh(words: str, place: Path) -> Mapping[str, str]:
    """Return an environment in which `ssh` has the key and the port."""
    wrapper = place / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/{words} -p {SSH_PORT} "$@"\n')
    wrapper.chmod(0o755)
    return {**os.environ, "PATH": f"{wrapper.parent}:{PATH}", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def by_ssh(network: Network, place: Path) -> Iterator[Launcher]:
    with ssh_servers(network, place) as ssh:
        hosts = ["-H", "host-1:2,host-2:1", "--ssh-port", SSH_PORT, "--ssh-command", ssh]
        yield Launcher(
            words=[*RONDE, *hosts],
            daemons=["launch.agent"],
            lost="the connection to host-2 is lost (",
            environment=os.environ,
        )


@contextlib.contextmanager
def by_salloc(network: Network, _: Path) -> Iterator[Launcher]:
    with slurm_cluster(network) as (environment, _restart):
        yield Launcher(
            words=["salloc", "-N2", "-n3", *RONDE],
            daemons=["slurmstepd"],
            lost="the connection to host-2 is lost (",
            environment=environment,
        )


@contextlib.contextmanager
def by_srun(network: Network, _: Path) -> Iterator[Launcher]:
    with slurm_cluster(network) as (environment, start_second):
        yield Launcher(
            words=["srun", "-N2", "-n3", *RONDE],
            daemons=["slurmstepd", "slurmd", RANK],
            lost="lost its connection to the host host-2 (",
            environment=environment,
            mend=start_second,
        )


@contextlib.contextmanager
def by_open_mpi(network: Network, place: Path) -> Iterator[Launcher]:
    command = [need("mpirun.openmpi", "openmpi-bin"), "--allow-run-as-root", "--bind-to", "none"]
    command += ["--host", "host-1:2,host-2:1", "-np", "3", "-x", "OMP_NUM_THREADS"]
    if "PYTHONPATH" in os.environ:
        command += ["-x", "PYTHONPATH"]
    with ssh_servers(network, place) as ssh:
        yield Launcher(
            words=[*command, *RONDE],
            daemons=["orted"],
            lost="on node host-2",
            environment=own_ssh(ssh, place),
        )


@contextlib.contextmanager
def by_mpich(network: Network, place: Path) -> Iterator[Launcher]:
    command = [need("mpiexec.mpich", "mpich"), "-launcher", "ssh", "-hosts", "host-1:2,host-2:1"]
    command += ["-np", "3", "-genv", "MASTER_ADDR", network.hosts[0].address]
    with ssh_servers(network, place) as ssh:
        yield Launcher(
            words=[*command, *RONDE],
            daemons=["hydra_pmi_proxy", RANK],
            lost="process manager error waiting for completion",
            environment=own_ssh(ssh, place),
        )


@contextlib.contextmanager
def by_ray(network: Network, place: Path) -> Iterator[Launcher]:
    with ray_cluster(network, place) as (address, start_second):
        yield Launcher(
            words=[*RONDE, "--ray", address],
            daemons=["raylet/raylet"],
            lost=f"the connection to {network.hosts[1].address} is lost (",
            environment=os.environ,
            mend=start_second,
        )


LAUNCHERS = {
    "ssh": by_ssh,
    "salloc": by_salloc,
    "srun": by_srun,
    "Open MPI": by_open_mpi,
    "MPICH": by_mpich,
    "Ray": by_ray,
}
