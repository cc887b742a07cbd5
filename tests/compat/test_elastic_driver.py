"""The driver's decisions, with launchers that do nothing: units come and end as a test says."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ronde.cluster.host_list import HostSlots, parse_hosts
from ronde.compat.elastic import driver as module
from ronde.compat.elastic.driver import Bounds
from ronde.errors import LaunchError
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory


class Launcher:
    """A process that lives until a test says otherwise."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def terminate(self) -> None:
        self.signals.append(signal.SIGTERM)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)


class Members:
    """Who is there, as a test says."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self.trouble = ""

    def answering(self, *, trusted: Any = ()) -> tuple[HostSlots, ...]:
        return parse_hosts(self.hosts)


class Story:
    """A driver, and what its ranks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hosts: str, bounds: Bounds) -> None:
        self.launchers: list[Launcher] = []
        self.said: list[str] = []
        self.members = Members(hosts)
        store: Any = dist.HashStore()
        port = type("Store", (), {"port": 1, "__getattr__": lambda _, name: getattr(store, name)})()

        def start(*_: Any) -> Launcher:
            self.launchers.append(Launcher())
            return self.launchers[-1]

        monkeypatch.setattr(module, "start_launcher", start)
        monkeypatch.setattr(module, "_LOOK_S", 0.001)
        monkeypatch.setattr(module, "is_this_host", lambda _: True)  # asks no server of names
        job = LaunchJob(
            run=RunSpec(
                script="python",
                quiet=True,
            ),
            ranks=1,
            run_directory=RunDirectory(path=tmp_path, run_id="x"),
            environment={},
        )
        self.driver: Any = module._Driver(
            job,
            Hosts(shares=()),
            bounds,
            self.members,  # type: ignore[arg-type]
            self.said.append,
            port,
        )
        self.store = store
        self.rendezvous = self.driver._rendezvous

    def look(self, hosts: str = "") -> None:
        """Have these hosts be seen."""
        if hosts:
            self.members.hosts = hosts
        while self.driver._hosts._there != parse_hosts(self.members.hosts):
            pass

    def tick(self) -> None:
        self.driver._bury()
        if not self.driver._is_ending:
            self.driver._change()

    def arrive(self, *units: int, ranks: int = 1) -> None:
        """These units are started, and their ranks come to `init`."""
        self.tick()
        for unit in units:
            self.store.add(f"here/{unit}", ranks)
        self.tick()

    def gather(self, *, met: bool = True) -> None:
        """All ranks of the newest generation come, and meet."""
        world = self.driver._world
        self.store.add(f"in/{world.generation}", len(world.members))
        self.tick()
        assert self.driver._sealed is world
        if met:
            self.store.add(f"met/{world.generation}", len(world.members))

    def train(self, *units: int) -> None:
        """These units begin the job."""
        self.arrive(*units)
        self.gather()

    def join(self, unit: int, hosts: str) -> None:
        """With these hosts a unit is started, and its ranks come."""
        self.look(hosts)
        self.arrive(unit)

    @property
    def units(self) -> list[int]:
        """Of the newest generation, by rank."""
        return [unit for _, unit, _ in self.driver._world.members]


Tell = Callable[..., Story]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    told: list[Story] = []

    def begin(hosts: str, **bounds: Any) -> Story:
        story = Story(monkeypatch, tmp_path, hosts, Bounds(**{"first": 1, "least": 1, **bounds}))
        told.append(story)
        story.look()
        story.tick()
        return story

    yield begin
    for each in told:
        each.driver._hosts.close()


def test_a_host_that_comes_is_waited_for_and_its_ranks_come_last(tell: Tell) -> None:
    story = tell("b:1")
    story.train(1)
    story.look("a:1,b:1")
    story.tick()
    assert (len(story.launchers), story.units) == (2, [1])  # which trains on meanwhile
    story.arrive(2)
    assert story.units == [1, 2]
    story.gather()
    assert story.said == ["going on with 2 ranks on b:1, a:1 [R704]"]


def test_a_slow_unit_does_not_become_rank_0_before_one_that_knows_the_state(tell: Tell) -> None:
    story = tell("a:1,b:1")
    story.arrive(2)
    story.driver._running[0].process.code = 1  # the first fails before it has come
    story.tick()
    story.gather()
    assert story.units == [2]
    story.driver._hosts._back_at.clear()
    story.tick()
    story.arrive(3)
    assert story.units == [2, 3]


def test_a_lost_host_is_not_used_again(tell: Tell) -> None:
    story = tell("a:1,b:1", first=2)
    story.train(1, 2)
    story.launchers[0].code = 137
    story.store.add("out/1", 1)
    story.tick()
    assert (story.units, len(story.launchers)) == ([2], 2)
    story.gather()
    story.launchers[1].code = 0
    assert story.driver.run() == 0


def test_those_that_know_the_state_stay_until_others_know_it(tell: Tell) -> None:
    story = tell("a:1")
    story.train(1)
    story.join(2, "b:1")
    assert story.units == [1, 2]
    story.gather()
    story.tick()
    assert story.units == [2]
    assert story.launchers[0].signals == []  # it hears of it by itself


def test_a_job_ends_when_nobody_is_left_who_knows_the_state(tell: Tell) -> None:
    story = tell("a:1")
    story.train(1)
    story.join(2, "a:1,b:1")
    assert story.units == [1, 2]
    story.launchers[0].code = 137  # before all have come
    assert story.driver.run() == 137


def test_a_newcomer_is_ended_when_the_script_has_come_to_its_end(tell: Tell) -> None:
    story = tell("a:1,c:1", first=2)
    story.train(1, 2)
    story.launchers[1].code = 1  # an earlier failure is none of the end's business
    story.store.add("out/1", 1)
    story.tick()
    story.gather()
    story.look("a:1,b:1,c:1")
    story.tick()
    story.launchers[0].code = 0
    assert story.driver.run() == 0
    assert story.launchers[2].signals == [signal.SIGTERM]
    assert story.store.add("over", 0) == 1


def test_a_host_that_goes_before_it_has_begun_is_ended(tell: Tell) -> None:
    story = tell("a:1")
    story.train(1)
    story.join(2, "a:1,b:1")
    assert story.units == [1, 2]
    story.look("a:1")
    story.tick()
    assert story.units == [1]
    assert story.launchers[1].signals == [signal.SIGTERM]


def test_only_meetings_count_against_the_limit(tell: Tell) -> None:
    story = tell("a:1", resets=1)
    story.train(1)
    for number, hosts in enumerate(("a:1,b:1", "a:1,b:1,c:1"), 2):
        story.join(number, hosts)
    assert story.units == [1, 2, 3]
    story.gather()
    story.look("a:1,b:1")
    with pytest.raises(LaunchError, match="ranks have been reset 1 times, and --reset-limit allows no more"):
        story.tick()


def test_a_host_that_others_cannot_meet_is_left_out(tell: Tell) -> None:
    story = tell("a:1")
    story.train(1)
    story.join(2, "a:1,b:1")
    for _ in range(2):
        story.gather(met=False)
        story.store.add(f"out/{story.driver._world.generation}", 2)
        story.tick()
    assert story.units == [1]
    assert "ranks cannot connect to those on b, and continue without them" in story.said[-1]
    assert story.launchers[1].signals == [signal.SIGTERM]


def test_a_host_that_only_starts_is_not_blamed_for_ranks_that_cannot_meet(tell: Tell) -> None:
    story = tell("a:1")
    story.train(1)
    story.join(2, "a:1,b:1")
    story.gather(met=False)
    story.look("a:1,b:1,c:1")
    story.tick()
    for _ in range(2):
        story.store.add(f"out/{story.driver._world.generation}", 2)
        story.tick()
        story.store.add(f"in/{story.driver._world.generation}", len(story.units))
        story.tick()
    assert story.units == [1]
    assert [each.signals for each in story.launchers] == [[], [signal.SIGTERM], []]


def test_ranks_that_do_not_come_are_ended(tell: Tell) -> None:
    story = tell("a:1,b:1", start=0.0)
    story.tick()
    assert [each.signals for each in story.launchers] == [[signal.SIGTERM]] * 2
    assert "the ranks on a have not called init() within 0 s, and are ended" in story.said[0]


def test_hosts_that_nobody_can_name_are_waited_for(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Members, *, trusted: Any = ()) -> Any:
        raise FileNotFoundError("no ssh here")

    monkeypatch.setattr(Members, "answering", fail)
    monkeypatch.setattr(Story, "look", lambda self: self.driver._hosts._looked.wait(10))
    story = tell("a:1", patience=0.0)
    assert story.said == ["0 of at least 1 slots are there; waiting for hosts (no ssh here) [R703]"]
    with pytest.raises(LaunchError, match="after 0 s"):
        story.driver._change()
