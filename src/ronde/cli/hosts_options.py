"""Options of `ronde run` for other hosts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ronde.errors import UsageError
from ronde.launch.placement import Placement

if TYPE_CHECKING:
    from ronde.launch.hosts import Hosts

__all__ = ["hosts_of", "is_here_alone", "on_ray"]


def on_ray(address: str, hosts: str | None, hostfile: Path | None) -> Placement:
    """Return the nodes of a Ray cluster.

    Raises:
        UsageError: hosts are named as well, or the cluster cannot be reached.
    """
    if hosts is not None or hostfile is not None:
        raise UsageError(
            f"--ray {address} names the hosts; leave -H, --hostfile and --host-discovery-script out [R165]"
        )
    from ronde.cluster.ray_nodes import nodes_of_ray

    return Placement(origin=f"--ray {address}", hosts=nodes_of_ray(address), by_ray=address)


def is_here_alone(shares: tuple[tuple[str, int], ...], where: Placement, *options: object) -> bool:
    """Return whether all ranks are on this host without options for other hosts."""
    reached = where.by_srun or where.by_ray or any(options)
    if len(shares) != 1 or reached:
        return False
    from ronde.cluster.reach import is_this_host

    return is_this_host(shares[0][0])


def _check_variables_are_here(variables: Sequence[str]) -> None:
    """Raise `UsageError` for a value: ranks of this host inherit variables as they are."""
    values = [item for item in _variables(variables) if "=" in item]
    if values:
        assignments = shlex.join(values)
        raise UsageError(f"ranks on this host inherit its variables; write {assignments} before ronde [R130]")


def hosts_of(
    where: Placement,
    shares: tuple[tuple[str, int], ...],
    port: int | None,
    command: str | None,
    variables: Sequence[str],
    address: str | None,
) -> Hosts | None:
    """Return hosts and the way to start ranks there; None without hosts.

    Raises:
        UsageError: an option for hosts is given without hosts, or a value is malformed.
    """
    given = {
        "--ssh-port": port,
        "--ssh-command": command,
        "--local-addr": address,
    }
    if not shares:
        for name, value in given.items():
            if value is not None:
                raise UsageError(
                    f"{name} applies to other hosts, and none is named; add -H host1:2,host2:2 [R130]"
                )
        _check_variables_are_here(variables)
        return None
    if where.by_srun and (port is not None or command is not None):
        raise UsageError(
            "--ssh-port and --ssh-command are for ssh, but the nodes of Slurm's allocation are reached by "
            "srun; name the hosts by -H to take ssh [R131]"
        )
    from ronde.cluster.ray_nodes import ray_words
    from ronde.launch.hosts import Hosts
    from ronde.launch.remote_command import RemoteExec

    if where.by_ray and (port is not None or command is not None):
        raise UsageError(
            "--ssh-port and --ssh-command are for ssh, but the nodes are reached by Ray; leave them "
            "out [R165]"
        )
    words = shlex.split(command) if command is not None else ["ssh"]
    if not words:
        raise UsageError("--ssh-command is empty; give the command that takes a host and a shell line [R131]")
    way = RemoteExec(command=tuple(words), port=port)
    if where.by_srun:
        way = RemoteExec(kind="srun", command=("srun",))
    elif where.by_ray:
        way = RemoteExec(kind="ray", command=ray_words(where.by_ray))
    return Hosts(
        shares=shares,
        way=way,
        always=command is not None or where.by_srun or bool(where.by_ray),
        variables=_variables(variables),
        local_address=_address(address),
    )


def _variables(given: Sequence[str]) -> tuple[str, ...]:
    """Split `NAME` and `NAME=VALUE` at commas that end a value."""
    items: list[str] = []
    for text in given:
        for item in text.split(","):
            # A comma inside of a value: the next word is not a name.
            if items and "=" in items[-1] and not re.fullmatch(r"[A-Za-z_]\w*(=.*)?", item, re.DOTALL):
                items[-1] += f",{item}"
            elif not re.fullmatch(r"[A-Za-z_]\w*(=.*)?", item, re.DOTALL):
                raise UsageError(f"--env {text}: {item!r} is not a variable; write NAME or NAME=VALUE [R132]")
            else:
                items.append(item)
    return tuple(items)


def _address(text: str | None) -> str:
    if text is None:
        return ""
    import ipaddress

    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise UsageError(
            f"--local-addr {text} is not an IP address; give one of this host's, see `ip address` [R133]"
        ) from None
