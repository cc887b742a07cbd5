"""`ronde run -H` on two hosts, namespaces of this one, by real ssh servers or what takes their place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ronde.testing.hosts import Network

from .launchers import SSH_PORT as PORT
from .launchers import ssh_servers, write_key
from .training import losses, plain_losses

pytestmark = [pytest.mark.root, pytest.mark.cluster]


@pytest.fixture
def ssh(network: Network, tmp_path: Path) -> Iterator[str]:
    """The words that start ssh, with the key that both hosts' servers know."""
    with ssh_servers(network, tmp_path) as words:
        yield words


def write_stub(place: Path, network: Network) -> Path:
    """A command in ssh's place that enters hosts' networks, for a launcher that sees their processes."""
    lines = ["#!/bin/sh", "case $1 in"]
    for host in network.hosts:
        number = host.command([])[2]
        lines.append(f'{host.name}) exec nsenter --target {number} --net --uts -- sh -c "$2" ;;')
    stub = place / "stub"
    stub.write_text("\n".join([*lines, "esac", ""]))
    stub.chmod(0o755)
    return stub


def start(network: Network, place: Path, *words: str) -> subprocess.Popen[str]:
    """`ronde run` on the first host; what it prints is in PLACE/launcher.log."""
    command = [sys.executable, "-m", "ronde", "run", *words]
    with open(place / "launcher.log", "w") as log:
        return network.hosts[0].popen(
            command, cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
        )


def said(place: Path) -> str:
    return (place / "launcher.log").read_text()


def await_words(place: Path, words: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 100
    while words not in said(place):
        assert process.poll() is None, said(place)
        assert time.monotonic() < end, said(place)
        time.sleep(0.05)


def test_by_ssh_one_devices_numbers_and_a_host_that_is_cut_off(
    network: Network,
    ssh: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The launcher's own name is 127.0.1.1 in /etc/hosts, as on Debian: no address for the others."""
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    options = ["-H", "host-1:2,host-2:1", "--ssh-port", PORT, "--ssh-command", ssh, "--run-dir", "run"]
    process = start(network, tmp_path, *options, "train.py", "100000000")
    await_words(tmp_path, "under way", process)
    assert "3 ranks on host-1:2, host-2:1 (from -H)" in said(tmp_path)
    assert losses(said(tmp_path)) == plain
    network.hosts[1].cut()
    cut = time.monotonic()
    assert process.wait(60) == 1
    assert time.monotonic() - cut < 40
    assert "the connection to host-2 is lost (" in said(tmp_path)
    assert ", and with it rank 2; check whether that host is up" in said(tmp_path)


def test_servers_of_the_plan_are_on_the_hosts(
    network: Network,
    ssh: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    options = ["-H", "host-1:1,host-2:1", "--ssh-port", PORT, "--ssh-command", ssh, "--run-dir", "run"]
    process = start(network, tmp_path, *options, "--plan", "ps", "--servers", "2", "train.py")
    assert process.wait(110) == 0, said(tmp_path)
    assert losses(said(tmp_path)) == plain
    for number in (0, 1):
        log = (tmp_path / "run" / f"host-{number}" / f"server-{number}.log").read_text()
        assert f"listens at tcp://{network.hosts[number].address}:" in log


def test_a_broken_connection_leaves_no_rank_behind(network: Network, ssh: str, tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time\nprint('under way', flush=True)\ntime.sleep(1000)\n")
    options = ["-H", "host-2:1", "--ssh-port", PORT, "--ssh-command", ssh, "--native"]
    process = start(network, tmp_path, *options, "wait.py")
    await_words(tmp_path, "under way", process)
    # The command that enters a host has the launcher for its child.
    (launcher,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(launcher), signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 20
    # The brackets: what looks for them is not among them.
    look = "! grep -q -e ronde.runtime.wor[k]er -e launch.a[g]ent /proc/[0-9]*/cmdline"
    there = ["sh", "-c", look]
    while network.hosts[1].popen(there, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("hosts", "port", "key", "words"),
    [
        (
            "host-2:1",
            PORT,
            "other",
            "host-2 asks for a password; give it your key: ssh-copy-id -p 2222 host-2",
        ),
        ("host-2:1", "2223", "key", "host-2 runs no ssh server on this port"),
        ("nobody:1", PORT, "key", "nobody cannot be resolved on this host"),
        ("10.199.0.9:1", PORT, "key", "10.199.0.9 is not reached by ssh"),
    ],
)
def test_a_host_that_takes_no_part(
    network: Network, ssh: str, tmp_path: Path, hosts: str, port: str, key: str, words: str
) -> None:
    write_key(tmp_path / "other")
    (tmp_path / "train.py").write_text("")
    command = ssh.replace(str(tmp_path / "key"), str(tmp_path / key))
    process = start(network, tmp_path, "-H", hosts, "--ssh-port", port, "--ssh-command", command, "train.py")
    assert process.wait(60) == 1
    assert words in said(tmp_path)


def test_by_a_command_in_the_place_of_ssh(
    network: Network,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    # From outside of both hosts' networks, where their address is none: they say so.
    stub = write_stub(tmp_path, network)
    options = ["-H", "host-1:1,host-2:1", "--ssh-command", str(stub), "train.py"]
    words = [sys.executable, "-m", "ronde", "run", *options]
    outside = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert outside.returncode == 1
    assert "host-1, host-2 cannot connect to this host, where ranks meet, at" in outside.stderr
    assert "name the right one by --local-addr IP" in outside.stderr

    # Where processes are numbered as outside, so that the command finds the hosts.
    inside = ["nsenter", "--target", network.hosts[0].command([])[2], "--net", "--uts", "--", *words]
    done = subprocess.run(inside, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == plain


def test_hosts_that_do_not_reach_each_other(tmp_path: Path) -> None:
    """Both reach the launcher's host, but not one another."""
    (tmp_path / "train.py").write_text("")
    with Network(3) as network:
        numbers = {host.name: host.command([])[2] for host in network.hosts}
        network.hosts[1].popen(["ip", "route", "add", "blackhole", f"{network.hosts[2].address}/32"]).wait()
        stub = write_stub(tmp_path, network)
        words = ["run", "-H", "host-1:1,host-2:1,host-3:1", "--ssh-command", str(stub), "train.py"]
        inside = [
            "nsenter",
            "--target",
            numbers["host-1"],
            "--net",
            "--uts",
            "--",
            sys.executable,
            "-m",
            "ronde",
        ]
        done = subprocess.run([*inside, *words], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "host-2 cannot connect to host-3 (TCP, any port), and its ranks need that;" in done.stderr
