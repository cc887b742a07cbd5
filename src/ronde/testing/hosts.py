"""Several hosts on one machine, for tests of communication between hosts.

    with Network(2, rate="1gbit") as network:
        first, second = network.hosts
        first.popen(["torchrun", "--nnodes", "2", "--master-addr", first.address, ...])
        second.cut()                                  # as if its cable were pulled

Each host has Linux namespaces of its own: network, host name, processes, shared memory. Only the files are
the same everywhere. A switch (a bridge in one more network namespace) joins them, so nothing is seen of the
machine's own network, and no name or address can collide with another test's.

Nothing is left behind, however the test ends: a host lives as long as the pipe to this process, its end is
the end of every process in it, and with them the kernel removes links, bridge and mounts.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Host", "HostsUnavailable", "Network"]

_TOOLS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "tc": "iproute2",
}
_NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")
# The first process of the new namespaces. It reads its outer pid while /proc is still the old one. It ends
# when its pipe to the maker of the host ends, and all other processes end with it.
_FIRST_PROCESS = """
read number rest < /proc/self/stat
mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && hostname {name} || exit 1
echo '{names}' > /dev/shm/hosts && mount --bind /dev/shm/hosts /etc/hosts && rm /dev/shm/hosts || exit 1
if test -f /etc/resolv.conf; then mount --bind /dev/null /etc/resolv.conf || exit 1; fi
{then} || exit 1
echo $number
exec cat > /dev/null
"""
_PATIENCE_S = 10.0
_LINK = "10.199.0"


class HostsUnavailable(Exception):
    """Raised if this machine or user cannot make hosts; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One host of a network.

    Attributes:
        name: its host name.
        address: its address on the network's only link.
        port: the name of the switch's end of its cable.
    """

    name: str
    address: str
    port: str
    _place: _Namespaces
    _switch: _Namespaces

    def command(self, words: Sequence[str], *, directory: str | None = None) -> list[str]:
        """Return the command that runs `words` on this host, in the same directory."""
        moved = ["sh", "-c", 'cd "$0" && exec "$@"', directory or os.getcwd(), *words]
        return self._place.command(moved)

    def popen(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command on this host; `options` go to `subprocess.Popen`."""
        directory = options.pop("cwd", None)
        return subprocess.Popen(self.command(words, directory=directory), text=True, **options)

    def enter(self) -> None:
        """Move the calling process into this host's network, under its name, for good.

        This is the fastest way for a process that was forked from one with torch. It must have one thread
        only. Its pid, files and /dev/shm stay those of the machine.
        """
        library = ctypes.CDLL(None, use_errno=True)
        for kind in ("ipc", "uts", "net"):
            handle = os.open(f"/proc/{self._place.number}/ns/{kind}", os.O_RDONLY)
            try:
                if library.setns(handle, 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace of {self.name}")
            finally:
                os.close(handle)

    def limit(self, rate: str, *, burst: str = "256kb") -> None:
        """Limit this host's traffic in both directions to `rate`, after a burst.

        `rate` is in `tc` notation ("1gbit").
        """
        for place, device in ((self._place, "eth0"), (self._switch, self.port)):
            # A burst of many packets: those of a virtual link are up to 64 KB long, where they are not cut.
            place.run(f"tc qdisc replace dev {device} root tbf rate {rate} burst {burst} latency 100ms")

    def cut(self) -> None:
        """Pull the cable: packets are lost from now on, without an error."""
        self._switch.run(f"ip link set {self.port} down")

    def mute(self) -> None:
        """Drop all packets that this host sends; it still receives."""
        self._place.run("tc qdisc replace dev eth0 root blackhole")

    def deafen(self) -> None:
        """Drop all packets to this host; it still sends."""
        self._switch.run(f"tc qdisc replace dev {self.port} root blackhole")

    def forget(self, other: Host) -> None:
        """Drop its packets to that other host; all else goes on."""
        self._place.run(f"ip route add blackhole {other.address}/32")

    def turn_off(self) -> None:
        """Cut its power: all its processes end at once, without notice."""
        self.cut()
        self._place.close()

    def mend(self) -> None:
        """Put the cable back."""
        self._switch.run(f"ip link set {self.port} up")


class Network:
    """Hosts and the switch between them, from `with` to its end.

    Args:
        hosts: number of hosts.
        rate: bandwidth of each host's link in each direction, as `tc` writes it; None: as fast as it goes.
        names: host names, "host-1" and so on if none are given.

    Raises:
        HostsUnavailable: the hosts cannot be made (not Linux, not root, no `ip`, namespaces forbidden, ...).
    """

    def __init__(self, hosts: int, *, rate: str | None = None, names: Sequence[str] = ()) -> None:
        self._host_names = names or [f"host-{number}" for number in range(1, hosts + 1)]
        self._rate = rate
        self._places: list[_Namespaces] = []
        self.hosts: tuple[Host, ...] = ()

    def __enter__(self) -> Network:
        _check_tools()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of every host; a second call does nothing."""
        # The switch last: a host whose link goes first would see its peers end in another order each time.
        for place in reversed(self._places):
            place.close()
        self._places.clear()
        self.hosts = ()

    def _make(self) -> None:
        switch = self._place("switch", "ip link add br0 type bridge && ip link set br0 up")
        hosts: list[Host] = []
        for number, name in enumerate(self._host_names, 1):
            address = f"{_LINK}.{number}"
            place = self._place(name, "ip link set lo up", names=self._names(number))
            switch.run(f"ip link add {name} type veth peer name eth0 netns {place.number}")
            switch.run(f"ip link set {name} master br0 up")
            place.run(f"ip addr add {address}/24 dev eth0")
            place.run("ip link set eth0 up")
            hosts.append(Host(name=name, address=address, port=name, _place=place, _switch=switch))
        self.hosts = tuple(hosts)
        for host in hosts:
            if self._rate is not None:
                host.limit(self._rate)

    def _names(self, own: int) -> str:
        """Return a host's /etc/hosts.

        As on Debian, its own name has an address that others cannot use.
        """
        lines = ["127.0.0.1 localhost"]
        for number, name in enumerate(self._host_names, 1):
            lines.append(f"{'127.0.1.1' if number == own else f'{_LINK}.{number}'} {name}")
        return "\n".join(lines)

    def _place(self, name: str, then: str, names: str = "") -> _Namespaces:
        place = _Namespaces(name, then, names)
        self._places.append(place)
        return place


class _Namespaces:
    """New namespaces, held by a first process that ends when this process does.

    Args:
        name: the host name in them.
        then: first command of a shell there.
        names: contents of /etc/hosts there.

    Attributes:
        number: process id of the first process, in this process's namespace.
    """

    def __init__(self, name: str, then: str, names: str) -> None:
        script = _FIRST_PROCESS.format(name=name, then=then, names=names)
        self._process = subprocess.Popen(
            ["unshare", *_NAMESPACES, "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer.isdecimal():
            _, complaint = self._process.communicate(timeout=_PATIENCE_S)
            raise HostsUnavailable(f"namespaces cannot be made here: {complaint.strip()}")
        self.number = int(answer)

    def command(self, words: Sequence[str], namespaces: Sequence[str] = _NAMESPACES) -> list[str]:
        return ["nsenter", "--target", str(self.number), *namespaces, "--", *words]

    def run(self, line: str) -> None:
        """Run one command of `ip` or `tc` in these namespaces.

        Raises:
            HostsUnavailable: the command fails; the kernel lacks something that it needs.
        """
        # In the network's namespace alone: numbers of processes are those from here.
        command = self.command(shlex.split(line), ("--net",))
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
        if done.returncode:
            raise HostsUnavailable(f"`{line}` failed: {done.stderr.strip()}")

    def close(self) -> None:
        process = self._process
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _check_tools(environment: Mapping[str, str] = os.environ) -> None:
    """Raise HostsUnavailable for the first thing that is missing."""
    if not sys.platform.startswith("linux"):
        raise HostsUnavailable(f"network namespaces are Linux's, this is {sys.platform}")
    if os.geteuid() != 0:
        raise HostsUnavailable("network namespaces need the rights of root")
    # The tools of root are not on every PATH.
    path = os.pathsep.join([environment.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=path) is None:
            raise HostsUnavailable(f"`{tool}` is missing; it is in the package {package}")
    if not Path("/proc/self/ns/net").exists():
        raise HostsUnavailable("this kernel has no network namespaces")
