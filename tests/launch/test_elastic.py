"""Hosts that come and go: who may take part, and how a run goes on with those that are there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ronde.cluster.host_list import HostSlots, parse_hosts
from ronde.errors import LaunchError, UsageError
from ronde.launch import elastic as module
from ronde.launch.elastic import Elastic, ElasticHosts
from ronde.launch.failure import RankFailure
from ronde.launch.failure_policy import FailurePolicy
from ronde.launch.host_discovery import HostDiscovery, discovered
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob, Outcome
from ronde.launch.remote_command import RemoteExec
from ronde.launch.restart_loop import launch_with_policy
from ronde.launch.run_spec import RunSpec
from ronde.messages import lift
from ronde.trace.run_directory import RunDirectory


def program(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("least", "most", "shares"),
    [
        (1, None, (("a", 2), ("b", 3))),
        (1, 4, (("a", 2), ("b", 2))),
        (5, 9, (("a", 2), ("b", 3))),
        (1, 2, (("a", 2),)),
        (6, None, ()),
    ],
)
def test_shares(least: int, most: int | None, shares: tuple[tuple[str, int], ...]) -> None:
    assert Elastic(least=least, most=most).shares(parse_hosts("a:2,b:3")) == shares


@pytest.mark.parametrize(
    ("least", "hosts", "shares"),
    [(2, "a:2,b:3", (("a", 2), ("b", 2))), (2, "a:3", (("a", 2),)), (4, "a:3", ())],
)
def test_no_more_ranks_than_the_plan_can_have(
    least: int, hosts: str, shares: tuple[tuple[str, int], ...]
) -> None:
    elastic = Elastic(least=least, fits=lambda ranks: ranks % 2 == 0)
    assert elastic.shares(parse_hosts(hosts)) == shares


def test_hosts_that_do_not_answer_are_left_out(tmp_path: Path) -> None:
    """The command in the place of ssh is given a host and a shell line."""
    stub = program(tmp_path / "stub", f'test ! -e {tmp_path}/$1.down && exec sh -c "$2"')
    hosts = parse_hosts("one:2,two,three:4")
    members = HostDiscovery(lambda: hosts, RemoteExec(command=(str(stub),)), always=True)
    assert members.answering() == hosts
    (tmp_path / "two.down").touch()
    (tmp_path / "three.down").touch()
    assert members.answering() == (HostSlots("one", 2),)
    assert members.answering(trusted=["three"]) == (HostSlots("one", 2), HostSlots("three", 4))


def test_a_script_that_cannot_say_leaves_the_hosts_as_they_were(tmp_path: Path) -> None:
    script = program(tmp_path / "discover", "echo one:2; echo two", "echo")
    members = HostDiscovery(lambda: discovered(script), RemoteExec(), always=False)
    found = (HostSlots("one", 2), HostSlots("two", 1))
    assert members.named() == found
    program(script, "echo no network >&2; exit 3")
    assert members.named() == found
    assert members.trouble == f"--host-discovery-script {script} failed with exit code 3: no network [R156]"
    program(script, "echo 'three times'")
    assert members.named() == found
    assert "'three times' is not a host with a number of ranks" in members.trouble


def test_a_script_that_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "discover"
    path.write_text("one:1")
    with pytest.raises(
        UsageError, match=r"cannot be run: Permission denied; it must be a program that prints"
    ):
        discovered(path)


class Run:
    """A run whose starts end as they are told to, and the hosts that are there meanwhile.

    Attributes:
        shares: of each start.
        resumed: of each start, whether it went on from a checkpoint.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *starts: Callable[..., Outcome]
    ) -> None:
        self.there = parse_hosts("a:2,b:1")
        self.shares: list[Any] = []
        self.resumed: list[bool] = []
        self.said: list[str] = []
        self._starts = list(starts)
        self._job = LaunchJob(
            run=RunSpec(
                script="train.py",
                checkpoint="saved",
            ),
            ranks=3,
            run_directory=RunDirectory.create(tmp_path / "run", os.environ),
            environment={},
        )
        monkeypatch.setattr(module, "_WAITING_S", 0.01)

    def _launch(self, job: LaunchJob, hosts: Hosts, explain: object, is_to_end: threading.Event) -> Outcome:
        assert job.ranks == sum(count for _, count in hosts.shares)
        self.shares.append(hosts.shares)
        self.resumed.append(job.run.resume)
        return self._starts.pop(0)(self, is_to_end)

    def end(self, least: int = 1, restarts: int = 1, patience: float = 5.0) -> Outcome:
        elastic = Elastic(least=least, patience=patience, look_s=0.01)
        members = HostDiscovery(lambda: self.there, RemoteExec(command=("true",)), always=True)
        return launch_with_policy(
            self._job,
            Hosts(shares=()),
            FailurePolicy(restarts=restarts),
            self.said.append,
            elastic=ElasticHosts(elastic, members, self.said.append),
            launching=self._launch,
        )


def loses_b(run: Run, _: threading.Event) -> Outcome:
    run.there = parse_hosts("a:2")
    return Outcome(exit_code=1, failure=RankFailure(rank=2, time=0.0, kind="standstill", exit_code=1))


def is_joined_by_b(run: Run, is_to_end: threading.Event) -> Outcome:
    run.there = parse_hosts("a:2,b:1")
    assert is_to_end.wait(10)
    return Outcome(exit_code=143)


def ends(*_: object) -> Outcome:
    return Outcome(exit_code=0)


def cannot_start(*_: object) -> Outcome:
    raise LaunchError("b is not reached by ssh")


def test_a_run_loses_a_host_and_gets_it_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, loses_b, is_joined_by_b, ends)
    assert run.end().exit_code == 0
    assert run.shares == [(("a", 2), ("b", 1)), (("a", 2),), (("a", 2), ("b", 1))]
    assert run.resumed == [False, True, True]
    assert [lift(said)[1] for said in run.said] == [
        "restart 1 of 1, from the newest checkpoint in saved",
        "going on with 2 ranks on a:2",
        "the hosts have changed",
        "going on with 3 ranks on a:2, b:1",
    ]


def test_failures_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, loses_b, cannot_start, loses_b)
    assert run.end(restarts=2).exit_code == 1
    assert "b is not reached by ssh" in run.said
    assert len(run.shares) == 3


def test_the_first_start_has_to_succeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="b is not reached by ssh"):
        Run(monkeypatch, tmp_path, cannot_start).end()


def test_a_user_who_ends_it_is_obeyed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, lambda *_: Outcome(exit_code=143))
    assert run.end().exit_code == 143
    assert len(run.shares) == 1


def test_too_few_hosts_are_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, loses_b)
    with pytest.raises(
        LaunchError, match=r"^2 of at least 3 slots answer after 0.1 s; start hosts, or lower"
    ):
        run.end(least=3, patience=0.1)
    assert run.said[-1] == "2 of at least 3 slots answer; waiting for hosts [R157]"
