"""Examines the hosts of a run before it starts, by an agent on each."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ronde.cluster.link_speed import LinkSpeed
from ronde.cluster.reach import (
    Greeter,
    addresses_of,
    candidates,
    ephemeral_ports,
    listen_everywhere,
)
from ronde.doctor.finding import Finding
from ronde.doctor.host_links import Pair, judge, rounds
from ronde.launch.agent_link import AgentLink
from ronde.launch.agents import Agents, about_run, agent_links
from ronde.launch.clock import HostClock
from ronde.launch.failure import ENDING
from ronde.launch.frames import FrameKind
from ronde.launch.host_checks import address_of_all, differences, host_environment, names_of_loopback
from ronde.launch.hosts import Hosts
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.trouble import Trouble

__all__ = ["examine_hosts"]

_READY_S, _EXAMINED_S, _DIALED_S, _MEASURED_S = 60.0, 30.0, 30.0, 20.0

_Answers = Mapping[int, dict[str, Any]]


def examine_hosts(
    hosts: Hosts, environment: Mapping[str, str], *, script: str, run_dir: str, threads: int | None
) -> Sequence[Finding]:
    """Examine hosts by themselves and together, and the links between them.

    Args:
        script: path of the script, which all must have; "" for none.
        run_dir: folder of its logs; "": the user's state directory.
        threads: number of threads that each rank is told to use; None: an equal share of the cores.

    Raises:
        LaunchError: the command that leads to hosts cannot be started.
    """
    with SignalInbox() as inbox, agent_links(hosts, _nothing, _nothing) as links:
        agents = Agents(hosts, links, lambda seconds: _wait(inbox, seconds))
        exam = _Exam(hosts, links, agents, environment)
        loopback = names_of_loopback([link.name for link in links], addresses_of)
        agents.start(inbox, environment, "doctor.host_agent")
        return [*_findings(loopback), *exam.findings(script, run_dir, threads)]


class _Exam:
    """Questions to the agents, one after another.

    A host that does not answer one question is not asked another.
    """

    def __init__(
        self,
        hosts: Hosts,
        links: Sequence[AgentLink],
        agents: Agents,
        environment: Mapping[str, str],
    ) -> None:
        self._hosts, self._links, self._agents, self._environment = hosts, links, agents, environment
        self._names = {link.index: link.name for link in links}
        self._word = os.urandom(16).hex()
        self._troubles: list[Trouble] = []

    def findings(self, script: str, run_dir: str, threads: int | None) -> Sequence[Finding]:
        given, _ = host_environment(self._environment, self._hosts.variables)
        hello = {
            link.index: {"environment": given, "about": about_run(script, run_dir, link.index)}
            for link in self._links
        }
        ready = self._ask(
            {index: (FrameKind.HELLO, each) for index, each in hello.items()}, FrameKind.READY, _READY_S
        )
        told = [(link.name, link.ranks, ready[link.index]) for link in self._links if link.index in ready]
        if told:
            self._troubles += differences(told, script, sys.executable, self._hosts.reference)
        asked = dict.fromkeys(ready, (FrameKind.CLOCK, HostClock.question()))
        self._ask(asked, FrameKind.CLOCK, _READY_S)
        clocks = {link.name: link.clock for link in self._links if link.clock.is_known}
        self._troubles += filter(None, (each.first.trouble(name) for name, each in clocks.items()))
        asked = {
            link.index: {"ranks": link.ranks, "threads": threads, "word": self._word}
            for link in self._links
            if link.index in ready
        }
        examined = self._ask(
            {index: (FrameKind.EXAMINE, each) for index, each in asked.items()},
            FrameKind.EXAMINED,
            _EXAMINED_S,
        )
        local = [
            dataclasses.replace(Finding(**each), host=self._names[index])
            for index, answer in sorted(examined.items())
            for each in answer["findings"]
        ]
        links = self._measured(examined)
        return [*local, *_findings(self._troubles), *links]

    def _measured(self, examined: _Answers) -> Sequence[Finding]:
        """Measure the links between hosts that answer."""
        addresses = self._addresses(examined)
        places = sorted(addresses)
        pairs: list[Pair] = []
        for each in rounds(len(places)) if len(places) > 1 else ():
            ways = [(places[one], places[two]) for one, two in each]
            at_one = self._speeds(ways, addresses, examined)
            at_two = self._speeds([(two, one) for one, two in ways], addresses, examined)
            pairs += (
                Pair(self._names[one], self._names[two], at_one.get(one), at_two.get(two))
                for one, two in ways
            )
        return judge(pairs)

    def _speeds(
        self, ways: Sequence[tuple[int, int]], addresses: Mapping[int, str], examined: _Answers
    ) -> Mapping[int, LinkSpeed]:
        """Let hosts measure links; return the results by measuring host."""
        asked = {
            one: (
                FrameKind.MEASURE,
                {"address": addresses[two], "port": examined[two]["port"], "word": self._word},
            )
            for one, two in ways
        }
        found = self._ask(asked, FrameKind.MEASURED, _MEASURED_S)
        return {
            index: LinkSpeed(answer["latency"], answer["rate"])
            for index, answer in found.items()
            if "failed" not in answer
        }

    def _addresses(self, examined: _Answers) -> Mapping[int, str]:
        """Find each host's address on the route to this host."""
        tried = (
            (self._hosts.local_address,) if self._hosts.local_address else candidates(self._agents.elsewhere)
        )
        with listen_everywhere() as listener:
            greeter = Greeter(listener, self._word)
            try:
                wanted = {
                    "addresses": tried,
                    "port": listener.getsockname()[1],
                    "word": self._word,
                    "ports": 0,
                }
                dialed = self._ask(
                    dict.fromkeys(examined, (FrameKind.DIAL, wanted)), FrameKind.DIALED, _DIALED_S
                )
            finally:
                greeter.stop()
        reached = [(self._names[index], answer["reached"]) for index, answer in dialed.items()]
        address, failed = address_of_all(tried, reached)
        if not address and failed:
            self._troubles += (
                Trouble(
                    host=name,
                    check="connections",
                    what=f"{name} cannot connect to this host at {', '.join(tried)} (TCP, any port)",
                    fix=f"name the right address by --local-addr IP, or open the firewall's ports "
                    f"{ephemeral_ports()} between the hosts",
                )
                for name in failed
            )
        return {index: answer["reached"][address] for index, answer in dialed.items() if address}

    def _ask(
        self, asked: Mapping[int, tuple[FrameKind, Mapping[str, Any]]], wanted: FrameKind, within: float
    ) -> _Answers:
        answers, troubles = self._agents.ask(asked, wanted, within)
        self._troubles += troubles
        return answers


def _findings(troubles: Sequence[Trouble]) -> Sequence[Finding]:
    return [
        Finding(check=each.check, level="wrong", host=each.host, summary=each.what, fix=each.fix)
        for each in troubles
    ]


def _nothing(*_: object) -> None:
    """Ignore output and files, as no rank is started."""


def _wait(inbox: SignalInbox, seconds: float) -> None:
    message = inbox.wait(seconds)
    if message is not None and message.si_signo in ENDING:
        sys.exit(128 + message.si_signo)
