"""Elastic runs: ranks restart from the newest checkpoint when hosts come or go.

A host that is lost ends the ranks; those that remain are started again from the newest checkpoint. A host
that comes, or that is no longer named, has the run save where its next step begins, and go on with the hosts
that are there then. The script's batch is the global one, so its numbers stay; the elastic runs of Horovod
and torch change the global batch with the number of ranks.
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

# Between two looks at who is there: while hosts are waited for, and while the run is under way.
_WAITING_S = 1.0
_UNDER_WAY_S = 5.0
# For so long hosts are waited for, as Horovod does.
_PATIENCE_S = 600.0

_Shares = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Elastic:
    """Bounds of the number of ranks.

    Attributes:
        least: fewer ranks are not started; more hosts are waited for.
        most: more are not used; None: as many as there are slots.
        fits: whether the plan can have so many ranks; it can have `least`.
        patience: seconds for which hosts are waited for.
        look_s: seconds between two looks at the hosts of a run that is under way.
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
    """The hosts of a run that come and go.

    Args:
        bounds: the least and the most ranks of the run.
        membership: says which hosts are named, and which of them answer.
        say: tells the user what is waited for.
    """

    def __init__(self, bounds: Elastic, membership: HostDiscovery, say: Callable[[str], object]) -> None:
        self._bounds, self._membership, self._say = bounds, membership, say

    def placed(self, job: LaunchJob, hosts: Hosts) -> tuple[LaunchJob, Hosts]:
        """Return the job with as many ranks as possible, and their hosts.

        Raises:
            LaunchError: too few hosts for too long.
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
        """Watch the hosts, as a context that gives an event for a change.

        A lost host is left out here, since the run fails by it.
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
