"""The driver of an elastic job, which adapts ranks to changing hosts.

A unit is the ranks of one host, started together by their own launcher. When one of them fails, its unit
ends, and its host is excluded for good or for a while. Surviving ranks keep their processes and memory: they
form a new generation (`rendezvous`), together with the ranks of new hosts.
"""

from __future__ import annotations

import dataclasses
import os
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
from ronde.compat.elastic.rendezvous import JobRendezvous
from ronde.compat.elastic.world import HostGroup, RankAssignment, World, members_of, share_out
from ronde.compat.place import UNIT_KEY
from ronde.errors import LaunchError
from ronde.launch.agent import about_this_host
from ronde.launch.failure import ENDING, shell_code
from ronde.launch.host_discovery import HostDiscovery
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob
from ronde.launch.run_end import Explain

__all__ = ["Bounds", "drive"]

_TICK_S = 0.1
_LOOK_S = 1.0
# After a signal to end, launchers have as long as their own timetables take.
_ENDED_S = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Limits of an elastic job: number of ranks, times and restarts.

    Attributes:
        first: number of ranks to begin with.
        least: minimum number of ranks; with fewer, the driver waits for hosts.
        most: maximum number of ranks; None: the number of slots.
        patience: seconds to wait for hosts.
        start: seconds within which started ranks must call `init`.
        resets: number of generations after the first; None: unlimited.
        cooldown: seconds for which a failed host is excluded, at first and at most; they double with each
            failure. None: excluded for good.
    """

    first: int
    least: int
    most: int | None = None
    patience: float = 600.0
    start: float = 600.0
    resets: int | None = None
    cooldown: tuple[float, float] | None = None


def drive(
    job: LaunchJob,
    hosts: Hosts,
    bounds: Bounds,
    membership: HostDiscovery,
    say: Callable[[str], object],
    explain: Explain | None = None,
) -> int:
    """Run an elastic job to its end, and return its exit code.

    Args:
        job: description of every unit; each unit has its own ranks.
        hosts: the way in which hosts are reached.
        explain: function that explains evidence of a stall or failure, for the launchers of hosts.

    Raises:
        LaunchError: too few hosts for too long, or the limit of resets is reached.
    """
    from torch.distributed import TCPStore  # a slow import, after options were checked

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    driver = _Driver(job, hosts, bounds, membership, say, store, explain)
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # e.g. under nohup
            signal.signal(number, driver.interrupt)
    try:
        return driver.run()
    finally:
        driver.close()


@dataclasses.dataclass(kw_only=True, slots=True)
class _RunningGroup:
    """A unit that was started.

    Attributes:
        until: deadline on the monotonic clock: for `init`, or, for a unit that is leaving, until it is
            killed.
        is_ready: whether all its ranks have called `init`.
    """

    unit: HostGroup
    process: subprocess.Popen[bytes]
    until: float
    is_ready: bool = False

    @property
    def knows(self) -> bool:
        """Return whether its ranks have the job's state, from an earlier generation."""
        return self.unit.joined is not None


class _Hosts:
    """Discovery of hosts in a thread, with a record of failed ones.

    Attributes:
        used: names of hosts in use, which need not be probed.
        trouble: error of the last discovery; "" if it succeeded.
    """

    def __init__(self, membership: HostDiscovery, cooldown: tuple[float, float] | None) -> None:
        self.used: Sequence[str] = ()
        self.trouble = ""
        self._membership, self._cooldown = membership, cooldown
        self._there: Sequence[HostSlots] = ()
        self._failures: dict[str, int] = {}
        self._back_at: dict[str, float] = {}
        self._looked = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ronde hosts", daemon=True)
        self._thread.start()

    @property
    def are_known(self) -> bool:
        """Return whether hosts have been discovered at least once."""
        return self._looked.is_set()

    def usable(self) -> Sequence[HostSlots]:
        """Return the hosts that answer and are not excluded."""
        now = time.monotonic()
        return [host for host in self._there if self._back_at.get(host.name, 0.0) <= now]

    def fail(self, name: str) -> None:
        """Exclude a host after a rank on it has failed."""
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
            try:
                self._there = self._membership.answering(trusted=self.used)
                self.trouble = self._membership.trouble
            except Exception as error:  # any error: keep the hosts of the last discovery
                self.trouble = str(error)
            self._looked.set()
            self._over.wait(_LOOK_S)


class _Driver:
    """The state of one elastic job."""

    def __init__(
        self, job: LaunchJob, hosts: Hosts, bounds: Bounds, membership: HostDiscovery,
        say: Callable[[str], object], store: Any, explain: Explain | None = None,
    ) -> None:  # fmt: skip
        self._explain = explain
        self._job, self._way, self._bounds, self._say = job, hosts, bounds, say
        self._port = store.port
        self._rendezvous = JobRendezvous(store)
        self._rendezvous.open()
        self._hosts = _Hosts(membership, bounds.cooldown)
        self._reference = about_this_host(job.run.program(), os.getcwd())
        self._running: list[_RunningGroup] = []
        self._leaving: list[_RunningGroup] = []
        self._world = self._sealed = World(generation=0, members=())
        self._resets = 0
        self._judged = 0
        self._unmet: tuple[tuple[str, int, int], ...] = ()
        self._units = self._ranks = 0
        self._is_ending = False
        self._failed = self._code = 0
        self._signal = 0
        self._too_few_since: float | None = None

    def interrupt(self, number: int, _: object) -> None:
        """Forward a signal of the user or batch system to the ranks."""
        self._signal, self._is_ending = number, True
        for each in (*self._running, *self._leaving):
            each.process.send_signal(number)

    def run(self) -> int:
        while True:
            self._bury()
            if self._is_ending:
                if not self._running:
                    return self._code or (128 + self._signal if self._signal and not self._units else 0)
            elif self._failed and not self._is_going_on():
                return self._failed
            else:
                self._change()
            time.sleep(_TICK_S)

    def close(self) -> None:
        """End all remaining units."""
        self._hosts.close()
        left = [each.process for each in (*self._running, *self._leaving)]
        for process in left:
            process.terminate()
        until = time.monotonic() + _ENDED_S
        for process in left:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _is_going_on(self) -> bool:
        """Return whether a unit with the job's state is running.

        Before the first generation, any running unit counts.
        """
        return any(not self._sealed.generation or each.knows for each in self._running)

    # Units that end.

    def _bury(self) -> None:
        """Remove units that have ended, and end units without `init` in time."""
        now = time.monotonic()
        for each in list(self._leaving):
            if each.process.poll() is not None:
                self._leaving.remove(each)
            elif now > each.until:
                each.process.kill()
        for each in list(self._running):
            code = each.process.poll()
            if code is not None:
                self._running.remove(each)
                self._take_end(each, code)
            elif not each.is_ready and now > each.until:
                self._say(
                    f"the ranks on {each.unit.host} have not called init() within {self._bounds.start:g} s, "
                    "and are ended [R706]"
                )
                self._dismiss(each)
                self._hosts.fail(each.unit.host)

    def _take_end(self, ended: _RunningGroup, code: int) -> None:
        if self._is_ending:
            self._code = self._code or shell_code(code)
        elif code:
            self._failed = shell_code(code)
            self._hosts.fail(ended.unit.host)
        else:
            # Its script has finished, so the others will too; units that wait for a generation wait in vain.
            self._is_ending = True
            self._rendezvous.end()
            for each in list(self._running):
                if not each.knows and self._sealed.generation:
                    self._dismiss(each)

    def _dismiss(self, running: _RunningGroup) -> None:
        """End a unit that has not joined a generation."""
        running.process.terminate()
        self._leave(running)
        running.until = time.monotonic() + _ENDED_S

    def _leave(self, running: _RunningGroup) -> None:
        """Move a unit from the running to the leaving ones."""
        running.until = float("inf")
        self._running.remove(running)
        self._leaving.append(running)

    # Units that start, and generations.

    def _change(self) -> None:
        """Adapt the units to the present hosts, and advance the generation."""
        hosts = self._hosts.usable()
        if not self._hosts.are_known:
            return
        for each in self._running:
            each.is_ready = each.is_ready or self._rendezvous.arrived(each.unit.number) >= each.unit.ranks
        shares = share_out(hosts, [each.unit for each in self._running], self._bounds.most)
        least = self._bounds.least if self._sealed.generation else self._bounds.first
        if shares.ranks < least:
            self._wait_for_hosts(hosts, least)
            return
        self._too_few_since = None
        for each in list(self._running):
            if each.unit.number not in shares.kept and not each.knows:
                self._dismiss(each)  # its host left before it had begun
        for host, ranks in shares.started:
            if not self._is_ending:
                self._start(host, ranks)
        self._hosts.used = [each.unit.host for each in self._running]
        self._look_at_rendezvous()
        self._publish(shares, least)
        newest = self._world
        is_sealed = self._sealed.generation == newest.generation
        if not is_sealed and self._rendezvous.inside(newest.generation) == len(newest.members):
            self._seal()

    def _publish(self, shares: RankAssignment, least: int) -> None:
        """Publish a new generation if one is due."""
        ready = [
            dataclasses.replace(each.unit, ranks=shares.kept[each.unit.number])
            for each in self._running
            if each.is_ready and each.unit.number in shares.kept
        ]
        if self._sealed.generation and all(unit.joined is None for unit in ready):
            # Units that have the state stay until the new ones have it too.
            ready += [each.unit for each in self._running if each.knows]
        members = members_of(ready)
        newest = self._world.generation
        is_asked = bool(newest) and self._rendezvous.left(newest) > 0
        is_due = members != self._world.members or is_asked
        # Wait for units that are starting, unless a rank waits for a new generation.
        starting = any(not each.is_ready for each in self._running)
        if not is_due or len(members) < least or (starting and not is_asked):
            return
        has_begun = bool(self._sealed.generation)
        if has_begun and self._bounds.resets is not None and self._resets >= self._bounds.resets:
            raise LaunchError(
                f"ranks have been reset {self._bounds.resets} times, and --reset-limit allows no more; see "
                "above why hosts were lost, or raise it [R706]"
            )
        self._world = World(
            generation=newest + 1, members=members, addresses=_addresses([unit.host for unit in ready])
        )
        self._rendezvous.publish(self._world, self._sealed.generation)
        kept = {unit.number: unit for unit in ready}
        for each in list(self._running):
            if each.unit.number in kept:
                each.unit = kept[each.unit.number]
            elif each.knows:
                self._leave(each)  # its ranks will learn it from the store

    def _seal(self) -> None:
        """Seal the newest generation, as all its ranks have joined."""
        is_reset = bool(self._sealed.generation)
        self._resets += is_reset
        self._sealed = self._world
        self._rendezvous.seal(self._sealed.generation)
        for each in self._running:
            if each.unit.number in self._sealed.units and not each.knows:
                each.unit = dataclasses.replace(each.unit, joined=self._sealed.generation)
        if is_reset or not self._job.run.quiet:
            ranks = Counter(host for host, _, _ in self._world.members)
            said = ", ".join(f"{host}:{count}" for host, count in ranks.items())
            many = len(self._world.members)
            what = "going on" if is_reset else "beginning"
            self._say(f"{what} with {many} rank{'s' if many > 1 else ''} on {said} [R704]")

    def _look_at_rendezvous(self) -> None:
        """Dismiss the youngest unit if living ranks fail to connect twice. It may not reach the others."""
        world = self._sealed
        if world is not self._world or not world.generation or not self._rendezvous.left(world.generation):
            return
        if self._judged == world.generation:
            return
        self._judged = world.generation
        alive = {each.unit.number for each in self._running}
        if self._rendezvous.have_met(world.generation) == len(world.members) or world.units - alive:
            self._unmet = ()
        elif self._unmet != world.members or len(world.units) == 1:
            self._unmet = world.members  # try again: a rank may have died without notice yet
        else:
            self._unmet = ()
            there = [each for each in self._running if each.unit.number in world.units]
            youngest = max(there, key=lambda each: each.unit.age)
            host = youngest.unit.host
            self._say(
                f"ranks cannot connect to those on {host}, and continue without them; see whether {host} "
                "reaches the other hosts (TCP, any port) [R705]"
            )
            self._dismiss(youngest)
            self._hosts.fail(host)

    def _start(self, host: str, ranks: int) -> None:
        self._units += 1
        variables = {UNIT_KEY: f"{self._units},{self._port}", "HOROVOD_ELASTIC": "1"}
        job = dataclasses.replace(
            self._job,
            ranks=ranks,
            first_rank=self._ranks,
            environment={**self._job.environment, **variables},
        )
        self._ranks += ranks
        hosts = dataclasses.replace(
            self._way,
            shares=((host, ranks),),
            variables=(*self._way.variables, *variables),
            reference=self._reference,
        )
        directory = self._job.run_directory
        unit_directory = None if directory.is_default else directory.path / f"unit-{self._units}"
        process = start_launcher(job, hosts, unit_directory, self._explain)
        unit = HostGroup(number=self._units, host=host, ranks=ranks)
        until = time.monotonic() + self._bounds.start
        self._running.append(_RunningGroup(unit=unit, process=process, until=until))
        if self._signal:  # a signal arrived meanwhile
            process.send_signal(self._signal)

    def _wait_for_hosts(self, hosts: Sequence[HostSlots], least: int) -> None:
        now = time.monotonic()
        trouble = f" ({self._hosts.trouble})" if self._hosts.trouble else ""
        words = f"{sum(host.slots for host in hosts)} of at least {least} slots are there"
        if self._too_few_since is None:
            self._too_few_since = now
            self._say(f"{words}; waiting for hosts{trouble} [R703]")
        elif now - self._too_few_since > self._bounds.patience:
            raise LaunchError(
                f"{words} after {self._bounds.patience:g} s{trouble}; start hosts, or lower --min-np [R703]"
            )


def _addresses(hosts: Sequence[str]) -> dict[str, str]:
    """Return addresses of this host for other hosts, if there are any.

    Ranks on this host only know a local one.
    """
    others = [host for host in hosts if not is_this_host(host)]
    if not others:
        return {}
    return {host: candidates(others)[0] for host in hosts if is_this_host(host)}
