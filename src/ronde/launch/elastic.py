"""Elastic runs: ranks restart from the newest checkpoint when hosts come or go.

A lost host ends all ranks; ranks on the remaining hosts are started again from the newest checkpoint. When a
host joins, or is no longer named, the run saves where its next step begins, and continues on the present
hosts. The batch in the script is the global batch, so results stay the same; the elastic runs of Horovod and
torch change the global batch with the number of ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import final

from ronde.cluster.host_list import HostSlots, ranks_of_hosts
from ronde.errors import LaunchError
from ronde.launch.host_discovery import HostDiscovery
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob
from ronde.trace.events import write_event

__all__ = ["Elastic", "ElasticHosts"]

# Seconds between two checks of the hosts: while the run waits for hosts, and while it trains.
_WAITING_S = 1.0
_UNDER_WAY_S = 5.0
# Seconds to wait for hosts, as in Horovod.
_PATIENCE_S = 600.0

_Shares = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Elastic:
    """Bounds of the number of ranks.

    Attributes:
        least: the fewest ranks; with fewer slots the run waits for hosts.
        most: the most ranks; None: as many as there are slots.
        fits: function that returns whether the plan allows a number of ranks; it allows `least`.
        patience: seconds to wait for hosts.
        look_s: seconds between two checks of the hosts during the run.
    """

    least: int
    most: int | None = None
    fits: Callable[[int], bool] = lambda ranks: True
    patience: float = _PATIENCE_S
    look_s: float = _UNDER_WAY_S

    def shares(self, hosts: Sequence[HostSlots]) -> _Shares:
        """Return the ranks of each host; () where there are too few slots."""
        slots = sum(host.slots for host in hosts)
        most = slots if self.most is None else min(slots, self.most)
        count = next(filter(self.fits, range(most, self.least - 1, -1)), 0)
        return ranks_of_hosts(hosts, count) if count else ()


@final
class ElasticHosts:
    """Hosts of an elastic run, which join and leave.

    Args:
        bounds: the least and the most ranks of the run.
        membership: lists the named hosts, and those that answer.
        say: function that tells the user why the run waits.
    """

    def __init__(self, bounds: Elastic, membership: HostDiscovery, say: Callable[[str], object]) -> None:
        self._bounds, self._membership, self._say = bounds, membership, say

    def placed(self, job: LaunchJob, hosts: Hosts) -> tuple[LaunchJob, Hosts]:
        """Return the job with as many ranks as possible, and their hosts.

        Raises:
            LaunchError: too few hosts answered for too long.
        """
        shares = self._wait_for_hosts()
        count = sum(ranks for _, ranks in shares)
        if job.attempt:
            words = (
                f"going on with {count} ranks on "
                f"{', '.join(f'{name}:{ranks}' for name, ranks in shares)} [R158]"
            )
            self._say(words)
            write_event(job.run_directory.path, "restart", words)
        return dataclasses.replace(job, ranks=count), dataclasses.replace(hosts, shares=shares)

    @contextlib.contextmanager
    def watching(self, hosts: Hosts) -> Iterator[threading.Event]:
        """Watch the hosts, as a context with an event that is set at changes.

        A lost host is not such a change, because the run fails without it.
        """
        changed, is_over = threading.Event(), threading.Event()
        arguments = (hosts.shares, changed, is_over)
        thread = threading.Thread(target=self._watch, args=arguments, name="ronde-hosts", daemon=True)
        thread.start()
        try:
            yield changed
        finally:
            is_over.set()
            thread.join()

    def _watch(self, used: _Shares, changed: threading.Event, is_over: threading.Event) -> None:
        names = [name for name, _ in used]
        while not is_over.wait(self._bounds.look_s):
            shares = self._bounds.shares(self._membership.answering(trusted=names))
            if shares and sorted(shares) != sorted(used):
                changed.set()
                return

    def _wait_for_hosts(self) -> _Shares:
        bounds = self._bounds
        until = time.monotonic() + bounds.patience
        waiting = False
        while True:
            there = self._membership.answering()
            shares = bounds.shares(there)
            if shares:
                return shares
            words = f"{sum(host.slots for host in there)} of at least {bounds.least} slots answer"
            trouble = f" ({self._membership.trouble})" if self._membership.trouble else ""
            if time.monotonic() > until:
                raise LaunchError(
                    f"{words} after {bounds.patience:g} s{trouble}; start hosts, or lower --min-ranks [R157]"
                )
            if not waiting:
                self._say(f"{words}; waiting for hosts{trouble} [R157]")
                waiting = True
            time.sleep(_WAITING_S)
