"""Checks of the hosts before a run, as pure functions of their descriptions."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ronde.cluster.reach import ephemeral_ports
from ronde.launch.trouble import Trouble

__all__ = [
    "address_of_all",
    "differences",
    "host_environment",
    "mesh_steps",
    "missing_states",
    "names_of_loopback",
    "unconnected",
]

# Free bytes that a node's ranks need on the disk of its run directory.
_LEAST_DISK = 16 << 20

# Variables that have the same effect under any launcher. Devices are chosen on each host, unless none are to
# be used.
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "RONDE_LOG")
_NAMES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "CUBLAS_WORKSPACE_CONFIG",
)
_NO_DEVICES = ("", "-1")


def host_environment(
    environment: Mapping[str, str], asked: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the variables for every host, and asked names without a value.

    Args:
        asked: `NAME`, with its value on this host, or `NAME=VALUE`.
    """
    given = {
        name: value for name, value in environment.items() if name in _NAMES or name.startswith(_PREFIXES)
    }
    if environment.get("CUDA_VISIBLE_DEVICES") in _NO_DEVICES:
        given["CUDA_VISIBLE_DEVICES"] = ""
    missing: list[str] = []
    for item in asked:
        name, has_value, value = item.partition("=")
        if has_value:
            given[name] = value
        elif name in environment:
            given[name] = environment[name]
        else:
            missing.append(name)
    return given, missing


def differences(
    hosts: Sequence[tuple[str, int, Mapping[str, Any]]],
    script: str,
    python: str,
    reference: Mapping[str, Any] | None = None,
) -> list[Trouble]:
    """Find the reasons why hosts cannot run one script together.

    Args:
        hosts: name, ranks and description (`agent.about_this_host`) of each.
        script: the path of it; "" for a module.
        python: the interpreter, for the line that installs a version.
        reference: description of this host; None: hosts are compared with the first of them.
    """
    first, _, told = hosts[0] if reference is None else ("this host", 0, reference)
    troubles: list[Trouble] = []
    for name, _, found in hosts:
        for what in ("python", "ronde", "torch"):
            if found[what] != told[what]:
                fix = (
                    "install the same environment on both"
                    if what == "python"
                    else f"on {name}: {python} -m pip install {what}=={told[what]}"
                )
                words = f"{name} has {what} {found[what] or '(none)'}, {first} has {told[what]} [R108]"
                troubles.append(Trouble(host=name, check="versions", what=words, fix=fix))
        if script and not found["script"]:
            fix = "copy the project there, or use a shared file system"
            troubles.append(Trouble(host=name, check="script", what=f"{name} has no {script}", fix=fix))
        elif found["script"] != told["script"]:
            words = f"{name} has another {script} than {first} [R107]"
            fix = "copy the project there again"
            troubles.append(Trouble(host=name, check="script", what=words, fix=fix))
        if 0 <= found["disk"] < _LEAST_DISK:
            words = f"{name} has {found['disk'] >> 20} MiB free on the disk of its run directory [R112]"
            fix = "free some there, or take another disk: --run-dir DIR"
            troubles.append(Trouble(host=name, check="disk", what=words, fix=fix))
    return troubles + _device_troubles(hosts)


def missing_states(
    directory: str, here: Collection[int], hosts: Sequence[tuple[str, Sequence[int]]]
) -> list[Trouble]:
    """Find hosts that do not see all tables of an earlier run.

    Args:
        directory: the earlier run's.
        here: numbers of servers that this host sees there.
        hosts: name of each host for servers, and the numbers of servers that it sees there.
    """
    seen = [here, *(numbers for _, numbers in hosts)]
    count = max((number + 1 for numbers in seen for number in numbers), default=0)
    return [
        Trouble(
            host=name,
            check="server-state",
            what=f"{name} sees the tables of {len(numbers)} of {count} servers in --server-state "
            f"{directory} [R136]",
            fix="have it on a file system that all hosts share, or copy its folders server-N of all hosts "
            "there",
        )
        for name, numbers in hosts
        if len(numbers) < count
    ]


def names_of_loopback(names: Sequence[str], addresses_of: Callable[[str], Sequence[str]]) -> list[Trouble]:
    """Return names of other hosts that resolve to this one.

    Args:
        addresses_of: looks a name up.
    """
    if len(names) < 2:
        return []
    troubles: list[Trouble] = []
    for name in names:
        host = name.rpartition("@")[2]
        if host in ("localhost", socket.gethostname()) or _is_address(host):
            continue
        found = addresses_of(host)
        if found and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found):
            troubles.append(
                Trouble(
                    host=name,
                    check="host-name",
                    what=f"{name} resolves here to {found[0]}, which is this host itself [R111]",
                    fix=f"give {host} its own address in /etc/hosts, or write the address in its place",
                )
            )
    return troubles


def unconnected(name: str, others: Sequence[str]) -> Trouble:
    """Describe a host that cannot connect to others that its ranks need."""
    return Trouble(
        host=name,
        check="connections",
        what=f"{name} cannot connect to {', '.join(others)} (TCP, any port), and its ranks need that [R116]",
        fix=f"open the firewall's ports {ephemeral_ports()} between the hosts",
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _device_troubles(hosts: Sequence[tuple[str, int, Mapping[str, Any]]]) -> list[Trouble]:
    with_devices = [name for name, _, found in hosts if found["devices"]]
    if not with_devices:
        return []
    troubles: list[Trouble] = []
    machines: dict[str, str] = {}

    def add(host: str, what: str, fix: str) -> None:
        troubles.append(Trouble(host=host, check="devices", what=what, fix=fix))

    for name, ranks, found in hosts:
        offered = len(found["devices"])
        if not offered:
            add(
                name,
                f"{name} offers no CUDA device, {with_devices[0]} does [R109]",
                f'leave {name} out, or run on the CPU with CUDA_VISIBLE_DEVICES=""',
            )
        elif ranks > offered:
            words = f"{ranks} ranks on {name} need a CUDA device each, it offers {offered} [R109]"
            add(name, words, f"give it fewer: {name}:{offered}")
        if found["machine"] in machines:
            other = machines[found["machine"]]
            words = f"{other} and {name} are one machine; name it once [R110]"
            add(name, words, "name it once, with all its slots")
        machines[found["machine"]] = name
    return troubles


def address_of_all(
    tried: Sequence[str], reached: Sequence[tuple[str, Mapping[str, str]]]
) -> tuple[str, list[str]]:
    """Return the first address that every host has reached, and the hosts that failed.

    Args:
        tried: the launcher's addresses, likeliest first.
        reached: addresses that each host has reached, with its name.
    """
    for address in tried:
        if all(address in found for _, found in reached):
            return address, []
    nowhere = [name for name, found in reached if not found]
    return "", nowhere or [name for name, _ in reached]


def mesh_steps(hosts: int) -> list[int]:
    """Return the distances of the hosts that each host connects to, at most ten.

    Powers of two, by which every host is within a few steps of every other, both near ones and far ones.
    """
    if hosts <= 9:
        return list(range(1, hosts))
    return [1 << power for power in range(10) if 1 << power < hosts]
