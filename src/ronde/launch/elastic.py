"""A run whose hosts come and go: it goes on from its newest checkpoint with those that are there.

A host that is lost ends the ranks; those that remain are started again from the newest checkpoint. A host
that comes, or that is no longer named, has the run save where its next step begins, and go on with the hosts
that are there then. The script's batch is the global one, so its numbers stay; the elastic runs of Horovod
and torch change the global batch with the number of ranks.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from ronde.cluster.host_list import HostSlots, ranks_of_hosts
from ronde.errors import LaunchError
from ronde.launch.controller import launch_on_hosts
from ronde.launch.hosts import Hosts
from ronde.launch.job import Job, Outcome
from ronde.launch.membership import Membership
from ronde.launch.restarts import is_for_another_start
from ronde.launch.run_end import Explain
from ronde.trace.events import write_event

__all__ = ["Elastic", "launch_elastic"]

# Between two looks at who is there: while hosts are waited for, and while the run is under way.
_WAITING_S = 1.0
_UNDER_WAY_S = 5.0
# For so long hosts are waited for, as Horovod does.
_PATIENCE_S = 600.0

_Shares = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Elastic:
    """Between which numbers of ranks a run may be.

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
        """The ranks of each host, as many as the plan can have; () where there are too few slots."""
        slots = sum(host.slots for host in hosts)
        most = slots if self.most is None else min(slots, self.most)
        count = next(filter(self.fits, range(most, self.least - 1, -1)), 0)
        return ranks_of_hosts(hosts, count) if count else ()


def launch_elastic(
    job: Job,
    hosts: Hosts,
    elastic: Elastic,
    membership: Membership,
    restarts: int,
    say: Callable[[str], object],
    explain: Explain | None = None,
) -> Outcome:
    """Run a job to its end on the hosts that are there.

    Args:
        restarts: how many failures it outlives; hosts that come or are taken away are none.
        explain: says what evidence of a stall or a failure means.

    Raises:
        LaunchError: too few hosts for too long.
    """
    failures = 0
    while True:
        shares = _wait_for(membership, elastic, say)
        count = sum(ranks for _, ranks in shares)
        if job.attempt:
            words = f"going on with {count} ranks on {_said(shares)}"
            say(words)
            write_event(job.run_directory.path, "restart", words)
        job = dataclasses.replace(job, ranks=count)
        with _Watch(membership, elastic, shares) as watch:
            outcome = _launched(job, dataclasses.replace(hosts, shares=shares), explain, watch.changed, say)
        if watch.changed.is_set() and outcome is not None and outcome.failure is None and outcome.exit_code:
            say("the hosts have changed")
        elif outcome is not None and not is_for_another_start(outcome):
            return outcome
        elif failures == restarts:
            return outcome or Outcome(exit_code=1)
        else:
            failures += 1
            say(f"restart {failures} of {restarts}, from the newest checkpoint in {job.run.checkpoint}")
        job = job.resumed(job.attempt + 1)
        job.run_directory.begin_attempt(job.attempt)


def _launched(
    job: Job,
    hosts: Hosts,
    explain: Explain | None,
    is_to_end: threading.Event,
    say: Callable[[str], object],
) -> Outcome | None:
    """None: hosts that had answered could not take part. The first start has to succeed."""
    try:
        return launch_on_hosts(job, hosts, explain, is_to_end)
    except LaunchError as error:
        if not job.attempt:
            raise
        say(str(error))
        return None


def _wait_for(membership: Membership, elastic: Elastic, say: Callable[[str], object]) -> _Shares:
    until = time.monotonic() + elastic.patience
    waiting = False
    while True:
        there = membership.answering()
        shares = elastic.shares(there)
        if shares:
            return shares
        words = f"{sum(host.slots for host in there)} of at least {elastic.least} slots answer"
        trouble = f" ({membership.trouble})" if membership.trouble else ""
        if time.monotonic() > until:
            raise LaunchError(
                f"{words} after {elastic.patience:g} s{trouble}; start hosts, or lower --min-ranks"
            )
        if not waiting:
            say(f"{words}; waiting for hosts{trouble}")
            waiting = True
        time.sleep(_WAITING_S)


class _Watch:
    """Looks for hosts that come, or are taken away, while a run is under way.

    A host that is lost is none of its business: the run fails by it.
    """

    def __init__(self, membership: Membership, elastic: Elastic, shares: _Shares) -> None:
        self.changed = threading.Event()
        self._over = threading.Event()
        self._membership, self._elastic, self._shares = membership, elastic, shares
        self._thread = threading.Thread(target=self._look, name="ronde-hosts", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        used = [name for name, _ in self._shares]
        while not self._over.wait(self._elastic.look_s):
            shares = self._elastic.shares(self._membership.answering(trusted=used))
            if shares and sorted(shares) != sorted(self._shares):
                self.changed.set()
                return


def _said(shares: _Shares) -> str:
    return ", ".join(f"{name}:{ranks}" for name, ranks in shares)
