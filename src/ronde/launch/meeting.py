"""Before a run on several hosts: reach every one of them, and see that they can run this together."""

from __future__ import annotations

import dataclasses
import os
import queue
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ronde.cluster.reach import Greeter, candidates, is_this_host, listen_everywhere
from ronde.errors import LaunchError, UsageError
from ronde.launch.agent_link import AgentLink, News
from ronde.launch.frames import Kind, unpack
from ronde.launch.host_checks import address_of_all, differences, host_environment, mesh_steps
from ronde.launch.hosts import Hosts
from ronde.launch.job import Job
from ronde.launch.remote_command import agent_line, why_it_failed
from ronde.launch.signal_inbox import SignalInbox
from ronde.plan import Plan, read_plan

__all__ = ["Clock", "Meeting", "Met"]

# How long an agent may take to come up (ssh, and Python from a slow file system), and to try addresses.
_READY_S = 60.0
_DIALED_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """How far the clocks of a host are before those of this one, in seconds."""

    wall: float
    monotonic: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """What the hosts have found out.

    Attributes:
        listener: a socket that listens, for the store.
        address: address by which all hosts reach it.
        own: address of each host, by which others reach it.
        ports: ports of each host that are free, for servers.
        clocks: clocks of each host.
        cuda: whether ranks have CUDA devices.
    """

    listener: socket.socket
    address: str
    own: Sequence[str]
    ports: Sequence[Sequence[int]]
    clocks: Sequence[Clock]
    cuda: bool

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]


class Meeting:
    """Agents that are started, and asked.

    Args:
        links: what leads to them, in the order of hosts.
        news: what they say.
        wait: waits so many seconds at most, for news or a signal, which may end the meeting.
    """

    def __init__(
        self,
        job: Job,
        hosts: Hosts,
        links: Sequence[AgentLink],
        news: queue.SimpleQueue[News],
        wait: Callable[[float], None],
    ) -> None:
        self._job, self._hosts, self._links, self._news, self._wait = job, hosts, links, news, wait

    def meet(self, inbox: SignalInbox) -> Met:
        """Reach every host, and see that they can run this together.

        Raises:
            UsageError: a variable is not set.
            LaunchError: they cannot.
        """
        given, missing = host_environment(self._job.environment, self._hosts.variables)
        if missing:
            names = ", ".join(missing)
            raise UsageError(
                f"--env {names} is not set here; set it, or give its value: --env {missing[0]}=VALUE"
            )
        here = [not self._hosts.always and is_this_host(link.name) for link in self._links]
        line = agent_line(sys.executable, os.getcwd(), self._for_python())
        for link, is_here in zip(self._links, here, strict=True):
            words = ["sh", "-c", line] if is_here else self._hosts.way.words(link.name, line, link.ranks)
            link.start(words, inbox.previous_mask)
        for link in self._links:
            link.listen()
        script = self._job.run.program()
        for link in self._links:
            link.send(Kind.HELLO, {"environment": given, "script": script, "cwd": os.getcwd()})
        found = self._answers(Kind.READY, _READY_S)
        _refuse(
            differences(
                [(link.name, link.ranks, each) for link, each in zip(self._links, found, strict=True)],
                script,
                sys.executable,
                self._hosts.reference,
            )
        )
        cuda = bool(found[0]["devices"])
        read_plan(self._job.run.plan, ranks=self._job.ranks, device="cuda" if cuda else "cpu")
        clocks = [Clock(each["time"] - each["wall"], each["monotonic"] - each["received"]) for each in found]
        others = [link.name for link, is_here in zip(self._links, here, strict=True) if not is_here]
        return self._find_addresses(others, clocks, cuda=cuda)

    def _for_python(self) -> dict[str, str]:
        """What the agent's interpreter must have when it starts."""
        value = self._job.environment.get("PYTHONPATH", "")
        paths = [os.path.abspath(path) for path in value.split(os.pathsep) if path]
        return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}

    def _find_addresses(self, others: list[str], clocks: Sequence[Clock], *, cuda: bool) -> Met:
        """Ask the hosts by which address they reach the store, and which is their own on the way there."""
        chosen = self._hosts.local_address
        tried = (chosen,) if chosen else candidates(others)
        by_name = tried if chosen else tried[:-1]
        listener = listen_everywhere()
        try:
            word = os.urandom(16).hex()
            servers = 0 if self._job.run.servers else Plan.parse(self._job.run.plan).state.server_count
            wanted = {
                "addresses": tried,
                "port": listener.getsockname()[1],
                "word": word,
                "ports": -(-servers // len(self._links)),
            }
            greeter = Greeter(listener, word)
            try:
                for link in self._links:
                    link.send(Kind.DIAL, wanted)
                found = self._answers(Kind.DIALED, _DIALED_S)
            finally:
                greeter.stop()
            reached = [(link.name, each["reached"]) for link, each in zip(self._links, found, strict=True)]
            address, failed = address_of_all(tried, reached)
            if not address:
                mend = (
                    f"give one that they reach instead of --local-addr {chosen}"
                    if chosen
                    else "name the right one by --local-addr IP"
                )
                raise LaunchError(
                    f"{', '.join(failed)} cannot connect to this host, where ranks meet, at "
                    f"{', '.join(by_name)} (TCP, any port); {mend}, or open the firewall's ports "
                    f"{_ephemeral()} between the hosts"
                )
            own = [each["reached"][address] for each in found]
            self._try_mesh(word, own, [each["mesh"] for each in found])
        except BaseException:
            listener.close()
            raise
        return Met(
            listener=listener,
            address=address,
            own=own,
            ports=[each["ports"] for each in found],
            clocks=clocks,
            cuda=cuda,
        )

    def _try_mesh(self, word: str, own: Sequence[str], ports: Sequence[int]) -> None:
        """Let every host connect to others, as its ranks will: a firewall may stand between two of them."""
        count = len(self._links)
        for link in self._links:
            peers = [self._links[(link.index + step) % count] for step in mesh_steps(count)]
            hosts = [(peer.name, own[peer.index], ports[peer.index]) for peer in peers]
            link.send(Kind.MESH, {"word": word, "hosts": hosts})
        found = self._answers(Kind.MESHED, _DIALED_S)
        _refuse(
            [
                f"{link.name} cannot connect to {', '.join(each['failed'])} (TCP, any port), and its ranks "
                f"would have to; open the firewall's ports {_ephemeral()} between the hosts"
                for link, each in zip(self._links, found, strict=True)
                if each["failed"]
            ]
        )

    def _answers(self, wanted: Kind, within: float) -> Sequence[dict[str, Any]]:
        """One answer of every agent, in their order, with the time of this host's clocks.

        Raises:
            LaunchError: some have none.
        """
        answers: dict[int, dict[str, Any]] = {}
        problems: list[str] = []
        waited_for = {link.index for link in self._links}
        until = time.monotonic() + within
        while waited_for and time.monotonic() < until:
            while not self._news.empty():
                link, kind, content = self._news.get()
                waited_for.discard(link.index)
                if kind is wanted:
                    clocks = {"wall": time.time(), "received": time.monotonic()}
                    answers[link.index] = {**unpack(content), **clocks}
                else:
                    problems.append(self._why_it_failed(link))
            self._wait(0.2 if self._news.empty() else 0.0)
        problems += [
            f"{self._links[index].name} has not answered for {within:g} s; see whether it is overloaded: "
            f"{self._hosts.way.try_by_hand(self._links[index].name)}"
            for index in sorted(waited_for)
        ]
        _refuse(problems)
        return [answers[link.index] for link in self._links]

    def _why_it_failed(self, link: AgentLink) -> str:
        return why_it_failed(
            link.name, link.code, link.said, self._hosts.way, python=sys.executable, directory=os.getcwd()
        )


def _refuse(problems: list[str]) -> None:
    if len(problems) == 1:
        raise LaunchError(problems[0])
    if problems:
        raise LaunchError("the hosts cannot run this together:\n  " + "\n  ".join(problems))


def _ephemeral() -> str:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as stream:
            return "-".join(stream.read().split())
    except OSError:
        return "32768-60999"
