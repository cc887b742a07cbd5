"""Options of `ronde run` for elastic runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ronde.cluster.host_list import HostSlots, read_hostfile
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.placement import Placement

if TYPE_CHECKING:
    from ronde.launch.elastic import ElasticHosts
    from ronde.launch.hosts import Hosts

__all__ = ["elastic_of", "named_by_script", "source_of"]

# Limit of the search, above the asked number of ranks, for a number that the plan can have.
_MOST_MORE = 1024


def named_by_script(
    script: Path | None, hosts: str | None, hostfile: Path | None, slots: int = 1
) -> str | None:
    """Return a discovery script's first hosts as a value of -H; None without it.

    Args:
        slots: slots of a host listed without a number.

    Raises:
        UsageError: hosts are named twice, or the script fails or lists no host.
    """
    if script is None:
        return None
    if hosts is not None or hostfile is not None:
        other = "-H" if hosts is not None else "--hostfile"
        raise UsageError(
            f"{other} and --host-discovery-script both name the hosts; leave one of them out [R155]"
        )
    from ronde.launch.host_discovery import discovered

    found = discovered(script, slots)
    if not found:
        raise UsageError(f"--host-discovery-script {script} names no host; let it print host:slots [R156]")
    return ",".join(f"{_bracketed(host.name)}:{host.slots}" for host in found)


def elastic_of(
    bounds: tuple[int | None, int | None, Path | None],
    remote: Hosts | None,
    hostfile: Path | None,
    where: Placement,
    ranks: str,
    count: int,
    *,
    saves: bool,
    fits: Callable[[int], bool],
) -> ElasticHosts | None:
    """Return the elasticity of a run, or None for fixed hosts.

    Args:
        bounds: --min-ranks, --max-ranks and --host-discovery-script.
        ranks: the option --ranks.
        count: number of ranks on the first hosts.
        saves: whether the run makes checkpoints.
        fits: function that tells whether the plan can have a number of ranks.

    Raises:
        UsageError: the options contradict each other, or another option is missing.
    """
    least, most, script = bounds
    names = ("--min-ranks", "--max-ranks", "--host-discovery-script")
    given = [(name, value) for name, value in zip(names, bounds, strict=True) if value is not None]
    if not given:
        return None
    name, value = given[0]
    if remote is None or where.by_srun:
        raise UsageError(
            f"{name} {value} is about hosts that come and go; name them by -H host1:2,host2:2 [R155]"
        )
    if not saves:
        raise UsageError(f"{name} {value} needs --checkpoint DIR, from which the run is resumed [R155]")
    if ranks != "auto":
        if most is not None:
            raise UsageError(
                f"--ranks {ranks} and --max-ranks {most} both bound the ranks; leave one out [R155]"
            )
        most = int(ranks)
    if least is not None and most is not None and least > most:
        raise UsageError(f"--min-ranks {least} is more than --max-ranks {most}; lower it [R155]")
    from ronde.launch.elastic import Elastic, ElasticHosts
    from ronde.launch.host_discovery import HostDiscovery

    membership = HostDiscovery(source_of(script, hostfile, where), remote.way, always=remote.always)
    asked = count if least is None else least
    least = next(filter(fits, range(asked, (most or asked + _MOST_MORE) + 1)), asked)
    return ElasticHosts(Elastic(least=least, most=most, fits=fits), membership, say)


def source_of(
    script: Path | None, hostfile: Path | None, where: Placement, slots: int = 1
) -> Callable[[], tuple[HostSlots, ...]]:
    """Return a function that lists the current hosts.

    Args:
        slots: slots of a host listed without a number.
    """
    if where.by_ray:
        from ronde.cluster.ray_nodes import nodes_of_ray

        return lambda: nodes_of_ray(where.by_ray)
    if script is not None:
        from ronde.launch.host_discovery import discovered

        return lambda: discovered(script, slots)
    if hostfile is not None:
        return lambda: read_hostfile(hostfile)
    return lambda: where.hosts


def _bracketed(name: str) -> str:
    return f"[{name}]" if name.count(":") > 1 else name
