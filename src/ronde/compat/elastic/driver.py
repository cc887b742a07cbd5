"""The driver of an elastic job: starts ranks on hosts that come, and has others go on where hosts go.

A unit is the ranks of one host, started together by a launcher of their own. When one of them fails its unit
ends, and its host is not used again, or not for a while. Ranks that live keep their processes and their
memory: they meet again (`rendezvous`), with those of hosts that have come.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ronde.cluster.host_list import HostSlots
from ronde.cluster.reach import candidates, is_this_host
from ronde.compat.elastic.host_launcher import start_launcher
from ronde.compat.elastic.rendezvous import Rendezvous
from ronde.compat.elastic.world import Shares, Unit, World, members_of, share_out
from ronde.compat.place import UNIT_KEY
from ronde.errors import LaunchError
from ronde.launch.failure_report import shell_code
from ronde.launch.hosts import Hosts
from ronde.launch.job import Job
from ronde.launch.membership import Membership
from ronde.launch.supervisor import ENDING

__all__ = ["Bounds", "drive"]

_TICK_S = 0.1
_LOOK_S = 1.0
# After a signal to end, launchers have as long as their own timetables take.
_ENDED_S = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Between which numbers of ranks a job may be, and for how long it holds out.

    Attributes:
        first: ranks with which it begins.
        least: fewer do not go on; more hosts are waited for.
        most: more are not used; None: as many as there are slots.
        patience: seconds for which hosts, or ranks that start, are waited for.
        resets: how often ranks may meet anew; None: as often as it takes.
        cooldown: seconds after which a host that has failed is used again, at first and at most; it doubles
            each time. None: it is not used again.
    """

    first: int
    least: int
    most: int | None = None
    patience: float = 600.0
    resets: int | None = None
    cooldown: tuple[float, float] | None = None


def drive(
    job: Job, hosts: Hosts, bounds: Bounds, membership: Membership, say: Callable[[str], object]
) -> int:
    """Run an elastic job to its end; its exit code.

    Args:
        job: what every unit is; its ranks are each unit's own.
        hosts: how hosts are reached.

    Raises:
        LaunchError: too few hosts for too long, or ranks have met anew too often.
    """
    from torch.distributed import TCPStore  # which takes its time, and options are checked before

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    driver = _Driver(job, hosts, bounds, membership, say, store)
    for number in ENDING:
        signal.signal(number, driver.interrupt)
    try:
        return driver.run()
    finally:
        driver.close()


@dataclasses.dataclass(kw_only=True, slots=True)
class _Running:
    """A unit that was started.

    Attributes:
        is_ready: its ranks have come to `init`.
        since: when it was started, on the monotonic clock.
    """

    unit: Unit
    process: subprocess.Popen[bytes]
    since: float
    is_ready: bool = False


class _Hosts:
    """Looks who is there, in a thread of its own, and remembers who has failed."""

    def __init__(self, membership: Membership, cooldown: tuple[float, float] | None) -> None:
        self.used: Sequence[str] = ()
        self._membership, self._cooldown = membership, cooldown
        self._there: tuple[HostSlots, ...] | None = None
        self._failures: dict[str, int] = {}
        self._back_at: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ronde hosts", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        return self._membership.trouble

    def usable(self) -> Sequence[HostSlots] | None:
        """Those that answer and have not failed; None before the first look."""
        if self._there is None:
            return None
        now = time.monotonic()
        return [host for host in self._there if self._back_at.get(host.name, 0.0) <= now]

    def fail(self, name: str) -> None:
        """A rank on it has failed."""
        self._failures[name] = self._failures.get(name, 0) + 1
        pause = float("inf")
        if self._cooldown is not None:
            first, most = self._cooldown
            pause = min(most, first * 2.0 ** (self._failures[name] - 1))
        self._back_at[name] = time.monotonic() + pause

    def close(self) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.is_set():
            self._there = self._membership.answering(trusted=self.used)
            self._over.wait(_LOOK_S)


class _Driver:
    """One job."""

    def __init__(
        self, job: Job, hosts: Hosts, bounds: Bounds, membership: Membership,
        say: Callable[[str], object], store: Any,
    ) -> None:  # fmt: skip
        self._job, self._way, self._bounds, self._say = job, hosts, bounds, say
        self._port = store.port
        self._rendezvous = Rendezvous(store)
        self._rendezvous.open()
        self._hosts = _Hosts(membership, bounds.cooldown)
        self._running: list[_Running] = []
        self._left_out: list[_Running] = []
        self._world = World(generation=0, members=())
        self._sealed = 0
        self._started_units = self._started_ranks = 0
        self._is_ending = False
        self._failed = self._code = 0
        self._signal = 0
        self._too_few_since: float | None = None

    def interrupt(self, number: int, _: object) -> None:
        """A signal of the user or a batch system: the ranks have it too."""
        self._signal, self._is_ending = number, True
        for each in (*self._running, *self._left_out):
            each.process.send_signal(number)

    def run(self) -> int:
        while True:
            self._bury()
            if self._is_ending and not self._running:
                return self._code or (128 + self._signal if self._signal and not self._started_units else 0)
            if self._failed and not self._is_going_on():
                return self._failed
            if not self._is_ending:
                self._change()
            time.sleep(_TICK_S)

    def _is_going_on(self) -> bool:
        """Whether somebody lives who knows the job's state; before its begin: whether somebody lives."""
        units = {unit for _, unit, _ in self._world.members}
        return any(not units or each.unit.number in units for each in self._running)

    def close(self) -> None:
        """End what is left."""
        self._hosts.close()
        left = [each.process for each in (*self._running, *self._left_out)]
        for process in left:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _ENDED_S
        for process in left:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _bury(self) -> None:
        """Take notice of units that have ended."""
        self._left_out = [each for each in self._left_out if each.process.poll() is None]
        for each in list(self._running):
            code = each.process.poll()
            if code is None:
                if not each.is_ready and time.monotonic() - each.since > self._bounds.patience:
                    self._say(
                        f"the ranks on {each.unit.host} have not called init() for "
                        f"{self._bounds.patience:g} s, and are ended"
                    )
                    each.process.terminate()  # which counts as a failure of its host
                    each.since = float("inf")
                continue
            self._running.remove(each)
            if code == 0:
                self._is_ending = True  # its script has come to the end, and the others' will
            elif self._is_ending:
                self._code = self._code or shell_code(code)
            else:
                self._failed = shell_code(code)
                self._hosts.fail(each.unit.host)

    def _change(self) -> None:
        """Bring ranks and hosts together."""
        hosts = self._hosts.usable()
        if hosts is None:
            return
        for each in self._running:
            each.is_ready = each.is_ready or self._rendezvous.arrived(each.unit.number) >= each.unit.ranks
        shares = share_out(hosts, [each.unit for each in self._running], self._bounds.most)
        least = self._bounds.least if self._world.generation else self._bounds.first
        if shares.ranks < least:
            self._wait_for_hosts(hosts, least)
            return
        self._too_few_since = None
        members = {unit for _, unit, _ in self._world.members}
        for each in list(self._running):
            if each.unit.number not in shares.kept and each.unit.number not in members:
                each.process.terminate()  # its host is gone before it has begun
                self._leave_out(each)
        for host, ranks in shares.started:
            self._start(host, ranks)
        self._hosts.used = [each.unit.host for each in self._running]
        self._publish(shares, least)
        newest = self._world.generation
        if self._sealed < newest and self._rendezvous.inside(newest) == len(self._world.members):
            self._seal()

    def _publish(self, shares: Shares, least: int) -> None:
        """Have a new generation begin where one is due."""
        ready = [
            dataclasses.replace(each.unit, ranks=shares.kept[each.unit.number])
            for each in self._running
            if each.is_ready and each.unit.number in shares.kept
        ]
        members = members_of(ready)
        newest = self._world.generation
        is_asked = bool(newest) and self._rendezvous.left(newest) > 0
        is_due = members != self._world.members or is_asked
        # Those that are about to come are waited for, unless somebody waits for a world.
        starting = any(not each.is_ready for each in self._running)
        if not is_due or len(members) < least or (starting and not is_asked):
            return
        if self._bounds.resets is not None and newest > self._bounds.resets:
            raise LaunchError(
                f"ranks have met anew {self._bounds.resets} times, and --reset-limit allows no more; see "
                "above why hosts were lost, or raise it"
            )
        before = {unit for _, unit, _ in self._world.members}
        self._world = World(
            generation=newest + 1, members=members, addresses=_addresses([unit.host for unit in ready])
        )
        self._rendezvous.publish(self._world, self._sealed)
        kept = {unit.number: unit for unit in ready}
        for each in list(self._running):
            if each.unit.number in kept:
                each.unit = kept[each.unit.number]
            elif each.unit.number in before:
                self._leave_out(each)  # its ranks will hear of it

    def _seal(self) -> None:
        """All ranks of the newest generation have come."""
        self._sealed = self._world.generation
        self._rendezvous.seal(self._sealed)
        if self._sealed > 1 or not self._job.quiet:
            ranks = Counter(host for host, _, _ in self._world.members)
            said = ", ".join(f"{host}:{count}" for host, count in ranks.items())
            many = len(self._world.members)
            what = "going on" if self._sealed > 1 else "beginning"
            self._say(f"{what} with {many} rank{'s' if many > 1 else ''} on {said}")

    def _leave_out(self, running: _Running) -> None:
        self._running.remove(running)
        self._left_out.append(running)

    def _start(self, host: str, ranks: int) -> None:
        self._started_units += 1
        number = self._started_units
        variables = {UNIT_KEY: f"{number},{self._port}"}
        job = dataclasses.replace(
            self._job,
            ranks=ranks,
            first_rank=self._started_ranks,
            environment={**self._job.environment, **variables},
        )
        self._started_ranks += ranks
        hosts = dataclasses.replace(
            self._way, shares=((host, ranks),), variables=(*self._way.variables, UNIT_KEY)
        )
        process = start_launcher(job, hosts, self._job.run_directory.path / f"unit-{number}")
        unit = Unit(number=number, host=host, ranks=ranks)
        self._running.append(_Running(unit=unit, process=process, since=time.monotonic()))

    def _wait_for_hosts(self, hosts: Sequence[HostSlots], least: int) -> None:
        now = time.monotonic()
        trouble = f" ({self._hosts.trouble})" if self._hosts.trouble else ""
        words = f"{sum(host.slots for host in hosts)} of at least {least} slots are there"
        if self._too_few_since is None:
            self._too_few_since = now
            self._say(f"{words}; waiting for hosts{trouble}")
        elif now - self._too_few_since > self._bounds.patience:
            raise LaunchError(
                f"{words} after {self._bounds.patience:g} s{trouble}; start hosts, or lower --min-np"
            )


def _addresses(hosts: Sequence[str]) -> dict[str, str]:
    """By which others reach this host, where there are others: its ranks were told what they need alone."""
    others = [host for host in hosts if not is_this_host(host)]
    if not others:
        return {}
    return {host: candidates(others)[0] for host in hosts if is_this_host(host)}
