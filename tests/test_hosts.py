"""The harness that makes several hosts of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ronde.testing import hosts
from ronde.testing.hosts import HostsUnavailable, Network

# Sends itself SIGKILL between two hosts, with a process on one of them that would outlive it.
KILLED = """
import os, signal
from ronde.testing.hosts import Network
with Network(2) as network:
    network.hosts[0].popen(["sleep", "1000"])
    print(*(os.stat(f"/proc/{place.number}/ns/net").st_ino for place in network._places), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def output(host: hosts.Host, *words: str) -> str:
    process = host.popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return process.communicate(timeout=30)[0].strip()


def namespaces() -> set[int]:
    """The network namespaces that some process is in."""
    found: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.add(os.stat(f"/proc/{entry}/ns/net").st_ino)
            except OSError:
                continue
    return found


@pytest.mark.root
def test_a_host_has_its_own_name_processes_and_shared_memory(network: Network):
    first, second = network.hosts
    assert [output(host, "hostname") for host in network.hosts] == ["host-1", "host-2"]
    assert output(first, "pwd") == os.getcwd()
    output(first, "sh", "-c", "echo x > /dev/shm/here")
    assert output(first, "ls", "/dev/shm") == "here"
    assert output(second, "ls", "/dev/shm") == ""
    assert not Path("/dev/shm/here").exists()


@pytest.mark.root
def test_a_cable_is_pulled_and_put_back(network: Network):
    first, second = network.hosts
    listen = "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); s.accept()"
    dial = f"import socket; socket.create_connection(('{first.address}', 5000), timeout=1); print('met')"
    server = first.popen([sys.executable, "-c", listen], stdout=subprocess.PIPE)
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == "up\n"
        second.cut()
        assert "met" not in output(second, sys.executable, "-c", dial)
        second.mend()
        while "met" not in output(second, sys.executable, "-c", dial):
            assert server.poll() is None
        server.wait(10)


@pytest.mark.root
def test_a_limit_is_set_on_both_ends_of_the_cable(network: Network):
    host = network.hosts[0]
    host.limit("80mbit")
    assert "tbf" in output(host, "tc", "qdisc", "show", "dev", "eth0")
    assert "rate 80Mbit" in output(host, "tc", "qdisc", "show", "dev", "eth0")
    with pytest.raises(HostsUnavailable, match="`tc qdisc replace"):
        host.limit("fast")


# Waits for a datagram, and says whether one has come.
HEARS = """
import socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("", 5001))
link.settimeout(0.3)
print("up", flush=True)
try:
    print(link.recv(9).decode())
except TimeoutError:
    print("nothing")
"""
SENDS = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"word", (sys.argv[1], 5001))
"""


def hears(listener: hosts.Host, sender: hosts.Host) -> bool:
    waiting = listener.popen([sys.executable, "-c", HEARS], stdout=subprocess.PIPE)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "up\n"
    sender.popen([sys.executable, "-c", SENDS, listener.address]).wait(10)
    return "word" in waiting.communicate(timeout=10)[0]


@pytest.mark.root
@pytest.mark.parametrize("harm", ["mute", "forget", "deafen"])
def test_a_link_is_cut_in_one_direction(network: Network, harm: str) -> None:
    first, second = network.hosts
    assert hears(first, second)  # so both know where the other is
    assert hears(second, first)
    if harm == "forget":
        second.forget(first)
    else:
        getattr(second, harm)()
    assert hears(first, second) == (harm == "deafen")
    assert hears(second, first) == (harm != "deafen")


@pytest.mark.root
def test_nothing_outlives_a_test_that_is_killed(network: Network):
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    made = {int(number) for number in done.stdout.split()}
    assert len(made) == 3
    while made & namespaces():  # the kernel needs a moment; pytest's own limit ends a test that waits in vain
        time.sleep(0.02)


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostsUnavailable, match="rights of root"), Network(2):
        pass


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = {"unshare", "nsenter", "mount"}
    monkeypatch.setattr(hosts.shutil, "which", lambda tool, path: tool if tool in found else None)
    with pytest.raises(HostsUnavailable, match="`ip` is missing; it is in the package iproute2"), Network(2):
        pass
