"""Options of `ronde horovodrun` for elastic jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ronde.cluster.host_list import HostSlots
from ronde.errors import UsageError

if TYPE_CHECKING:
    from ronde.compat.elastic.driver import Bounds
    from ronde.launch.hosts import Hosts
    from ronde.launch.job import LaunchJob
    from ronde.launch.run_end import Explain

__all__ = ["bounds_of", "drive_job"]


def bounds_of(
    ranks: tuple[int | None, int | None, int | None],
    timeout: int,
    start: int | None,
    resets: int | None,
    cooldown: tuple[int, int] | None,
) -> Bounds:
    """Return the bounds of an elastic job's number of ranks.

    Args:
        ranks: -np, --min-np and --max-np.
        timeout, start, resets, cooldown: as in `Bounds`.

    Raises:
        UsageError: the options contradict each other.
    """
    first, least, most = ranks
    if least is None:
        raise UsageError("--min-np N, the least number of ranks, is missing; give it, or -np N [R702]")
    if most is not None and least > most:
        raise UsageError(f"--min-np {least} is more than --max-np {most}; lower it [R702]")
    first = least if first is None else first
    if first < least or (most is not None and first > most):
        bounds = f"--min-np {least}" + ("" if most is None else f" and --max-np {most}")
        raise UsageError(f"-np {first} is not between {bounds}; change one of them [R702]")
    if cooldown is not None and not 0 < cooldown[0] <= cooldown[1]:
        raise UsageError(
            f"--blacklist-cooldown-range {cooldown[0]} {cooldown[1]}: give seconds from 1, the smaller "
            "first [R702]"
        )
    from ronde.compat.elastic.driver import Bounds

    return Bounds(
        first=first,
        least=least,
        most=most,
        patience=timeout,
        start=start or timeout,
        resets=resets,
        cooldown=cooldown,
    )


def drive_job(
    job: LaunchJob,
    hosts: Hosts,
    bounds: Bounds,
    named: Callable[[], tuple[HostSlots, ...]],
    say: Callable[[str], object],
    explain: Explain,
) -> int:
    """Run the job and return its exit code.

    Args:
        named: function that lists the current hosts.
        explain: function that explains the evidence of a stall or failure.

    Raises:
        LaunchError: see `drive`.
    """
    from ronde.compat.elastic.driver import drive
    from ronde.launch.host_discovery import HostDiscovery

    membership = HostDiscovery(named, hosts.way, always=hosts.always)
    return drive(job, hosts, bounds, membership, say, explain)
