"""Agents of all hosts before a run: how they are started and asked."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ronde.cluster.reach import is_this_host
from ronde.launch.agent_link import AgentLink
from ronde.launch.frames import FrameKind, unpack
from ronde.launch.hosts import Hosts
from ronde.launch.remote_command import agent_line, why_it_failed
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.trouble import Trouble

__all__ = ["Agents", "about_run", "agent_links"]

# Seconds that the commands have for their end after the run.
_LEAVE_S = 2.0


class Agents:
    """The agents of all hosts, and their answers.

    Args:
        links: one for each host.
        wait: function that waits at most the given seconds for news or a signal, and may raise.
    """

    def __init__(
        self,
        hosts: Hosts,
        links: Sequence[AgentLink],
        wait: Callable[[float], None],
    ) -> None:
        self._hosts, self._links, self._wait = hosts, links, wait
        here = [not hosts.always and is_this_host(link.name) for link in links]
        self._gone: set[int] = set()
        self._here = {link.index for link, is_here in zip(links, here, strict=True) if is_here}

    @property
    def elsewhere(self) -> Sequence[str]:
        """Names of hosts other than this one."""
        return [link.name for link in self._links if link.index not in self._here]

    def start(self, inbox: SignalInbox, environment: Mapping[str, str], module: str) -> None:
        """Start an agent on each host. Call it before any thread starts.

        Args:
            environment: variables of this process.
            module: module of ronde with the agent's `main`.

        Raises:
            LaunchError: the command that leads to hosts cannot be started.
        """
        line = agent_line(sys.executable, os.getcwd(), _for_python(environment), module)
        for link in self._links:
            words = (
                ["sh", "-c", line]
                if link.index in self._here
                else self._hosts.way.words(link.name, line, link.ranks)
            )
            link.start(words, inbox.previous_mask)
        for link in self._links:
            link.listen()

    def ask(
        self, asked: Mapping[int, tuple[FrameKind, Mapping[str, Any]]], wanted: FrameKind, within: float
    ) -> tuple[dict[int, dict[str, Any]], list[Trouble]]:
        """Ask agents, and wait for the answer of each.

        Args:
            asked: question to each agent, by its number; one that is gone is not asked.

        Returns:
            the received answers, and the reason for each missing one.
        """
        links = {link.index: link for link in self._links}
        for index in asked.keys() - self._gone:
            kind, fields = asked[index]
            links[index].send(kind, dict(fields))
        return self.answers(asked.keys(), wanted, within)

    def answers(
        self, indices: Collection[int], wanted: FrameKind, within: float
    ) -> tuple[dict[int, dict[str, Any]], list[Trouble]]:
        """Wait for answers of agents that have been asked; return them as `ask` does."""
        links = {link.index: link for link in self._links}
        waited_for = set(indices) - self._gone
        answers: dict[int, dict[str, Any]] = {}
        troubles: list[Trouble] = []
        until = time.monotonic() + within
        while waited_for and time.monotonic() < until:
            for link in [links[index] for index in waited_for if not links[index].news.empty()]:
                kind, content = link.news.get()
                waited_for.discard(link.index)
                if kind is wanted:
                    answers[link.index] = unpack(content)
                else:
                    self._gone.add(link.index)
                    troubles.append(self._why_it_failed(link))
            if waited_for:
                self._wait(0.2 if all(links[index].news.empty() for index in waited_for) else 0.0)
        for index in sorted(waited_for):
            name = links[index].name
            by_hand = self._hosts.way.try_by_hand(name)
            what = f"{name} has not answered for {within:g} s [R105]"
            fix = f"see whether it is overloaded: {by_hand}"
            troubles.append(Trouble(host=name, check="reached", what=what, fix=fix))
        return answers, troubles

    def _why_it_failed(self, link: AgentLink) -> Trouble:
        return why_it_failed(
            link.name, link.code, link.said, self._hosts.way, python=sys.executable, directory=os.getcwd()
        )


def about_run(script: str, run_dir: str, host: int) -> dict[str, str]:
    """Return the arguments of `agent.about_this_host`.

    Args:
        script: its path; "" for a module.
        run_dir: the user's choice; "": the user's state directory.
        host: number of the host.
    """
    place = run_dir and os.path.join(run_dir, f"host-{host}")
    return {"script": script, "cwd": os.getcwd(), "run_dir": place}


def _for_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the agent's interpreter needs when it starts."""
    value = environment.get("PYTHONPATH", "")
    paths = [os.path.abspath(path) for path in value.split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}


@contextlib.contextmanager
def agent_links(
    hosts: Hosts, show: Callable[[int, bytes], None], save: Callable[[AgentLink, bytes], None]
) -> Iterator[Sequence[AgentLink]]:
    """Make links to the agents of all hosts, as a context that ends them.

    Args:
        show, save: as of `AgentLink`.
    """
    links = [AgentLink(index, name, ranks, show, save) for index, (name, ranks) in enumerate(hosts.shares)]
    try:
        yield links
    finally:
        started = [link for link in links if link.has_started]
        for link in started:
            link.close()
        until = time.monotonic() + _LEAVE_S
        for link in started:
            link.end(until)
