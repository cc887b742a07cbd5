"""The rendezvous of hosts before a run: connect to all, and compare them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ronde.cluster.reach import Greeter, addresses_of, candidates, ephemeral_ports, listen_everywhere
from ronde.errors import LaunchError, UsageError
from ronde.launch.agent_link import AgentLink
from ronde.launch.agents import Agents, about_run
from ronde.launch.checkpoint_transfer import CheckpointSender, mark_folder
from ronde.launch.frames import FrameKind
from ronde.launch.host_checks import (
    address_of_all,
    differences,
    host_environment,
    mesh_steps,
    missing_states,
    names_of_loopback,
    unconnected,
)
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.trouble import Trouble
from ronde.plan import Plan, read_plan
from ronde.trace.server_states import server_states

__all__ = ["Rendezvous", "RendezvousResult"]

# Seconds that an agent may take to start (ssh, and Python from a slow file system), and to try addresses.
_READY_S = 60.0
_DIALED_S = 30.0
# Least bytes per second at which checkpoints are sent to hosts that do not see them.
_SLOWEST = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousResult:
    """Addresses and ports that the hosts have agreed on.

    Attributes:
        listener: a listening socket for the store.
        address: address at which all hosts reach the store.
        own: address of each host, by which others reach it.
        ports: ports of each host that are free, for servers.
        cuda: whether ranks have CUDA devices.
        far: numbers of hosts that do not see the launcher's folder of checkpoints.
    """

    listener: socket.socket
    address: str
    own: Sequence[str]
    ports: Sequence[Sequence[int]]
    cuda: bool
    far: Sequence[int] = ()

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]


class Rendezvous:
    """Started agents, to be questioned.

    Args:
        links: links to their agents, in the order of hosts.
        wait: function that waits at most the given seconds for news or a signal, and may raise.
    """

    def __init__(
        self,
        job: LaunchJob,
        hosts: Hosts,
        links: Sequence[AgentLink],
        wait: Callable[[float], None],
    ) -> None:
        self._job, self._hosts, self._links = job, hosts, links
        self._agents = Agents(hosts, links, wait)

    def meet(self, inbox: SignalInbox) -> RendezvousResult:
        """Connect to every host, and check that they can run this together.

        Raises:
            UsageError: a variable is not set.
            LaunchError: the hosts cannot run this together.
        """
        given, missing = host_environment(self._job.environment, self._hosts.variables)
        if missing:
            names = ", ".join(missing)
            raise UsageError(
                f"--env {names} is not set here; set it, or give its value: --env {missing[0]}=VALUE [R132]"
            )
        _refuse(names_of_loopback([link.name for link in self._links], addresses_of))
        self._agents.start(inbox, self._job.environment, "launch.agent")
        script = self._job.run.program()
        asked: dict[int, tuple[FrameKind, Mapping[str, Any]]] = {}
        with self._marked() as mark:
            for link in self._links:
                about = about_run(script, self._job.chosen_directory, link.index)
                sees = {"mark": mark, "server_state": self._job.run.server_state}
                asked[link.index] = (FrameKind.HELLO, {"environment": given, "about": about, "sees": sees})
            found = self._answers(asked, FrameKind.READY, _READY_S)
        _refuse(
            differences(
                [(link.name, link.ranks, each) for link, each in zip(self._links, found, strict=True)],
                script,
                sys.executable,
                self._hosts.reference,
            )
        )
        if self._job.run.server_state:
            self._check_server_states([each["server_states"] for each in found])
        cuda = bool(found[0]["devices"])
        read_plan(self._job.run.plan, ranks=self._job.ranks, device="cuda" if cuda else "cpu")
        self._answers(
            {link.index: (FrameKind.CLOCK, link.clock.question()) for link in self._links},
            FrameKind.CLOCK,
            _READY_S,
        )
        far = [link for link, each in zip(self._links, found, strict=True) if not each["sees_checkpoints"]]
        self._bring_checkpoints(far)
        return dataclasses.replace(self._find_addresses(cuda=cuda), far=[link.index for link in far])

    def _marked(self) -> AbstractContextManager[str]:
        """Mark the folder of checkpoints, unless it is an object store."""
        folder = self._job.run.checkpoint
        return nullcontext("") if "://" in folder else mark_folder(folder)

    def _bring_checkpoints(self, far: Sequence[AgentLink]) -> None:
        """Send the checkpoints to resume from to hosts that do not see them.

        Raises:
            LaunchError: a host cannot keep them.
        """
        run = self._job.run
        nbytes = CheckpointSender(Path(run.checkpoint)).nbytes() if far and run.resume else 0
        for link in far:
            threading.Thread(target=self._send_checkpoints, args=(link,), daemon=True).start()
        answers = self._results(
            far,
            self._agents.answers(
                [link.index for link in far], FrameKind.BROUGHT, _READY_S + nbytes * len(far) / _SLOWEST
            ),
        )
        _refuse(
            [
                Trouble(
                    host=link.name,
                    check="disk",
                    what=f"{link.name} does not see --checkpoint {run.checkpoint} of this host and cannot "
                    f"keep it in {each['problem']} [R124]",
                    fix="free some space there, or choose another disk by --run-dir DIR",
                )
                for link, each in zip(far, answers, strict=True)
                if each["problem"]
            ]
        )

    def _send_checkpoints(self, link: AgentLink) -> None:
        run = self._job.run
        place = {"run_dir": self._job.chosen_directory, "run_id": self._job.node_run_id(link.index)}
        pieces = CheckpointSender(Path(run.checkpoint)).pieces() if run.resume else ()
        first = json.dumps({**place, "host": link.index}).encode()
        saved = ((FrameKind.SAVED, piece.to_bytes()) for piece in pieces)
        link.send_many(itertools.chain([(FrameKind.BRING, first)], saved, [(FrameKind.BROUGHT, b"")]))

    def _check_server_states(self, found: Sequence[Sequence[int]]) -> None:
        """Check that hosts with servers see all tables; `found`: numbers of each host."""
        place = self._job.run.server_state
        named = [(link.name, each) for link, each in zip(self._links, found, strict=True)]
        _refuse(missing_states(place, server_states(Path(place)), named[: self._count_of_servers()]))

    def _count_of_servers(self) -> int:
        """Return the number of servers to start."""
        return 0 if self._job.run.servers else Plan.parse(self._job.run.plan).state.server_count

    def _find_addresses(self, *, cuda: bool) -> RendezvousResult:
        """Ask each host for its route to the store, and its own address there."""
        chosen = self._hosts.local_address
        tried = (chosen,) if chosen else candidates(self._agents.elsewhere)
        by_name = tried if chosen else tried[:-1]
        listener = listen_everywhere()
        try:
            word = os.urandom(16).hex()
            servers = self._count_of_servers()
            wanted = {
                "addresses": tried,
                "port": listener.getsockname()[1],
                "word": word,
                "ports": -(-servers // len(self._links)),
            }
            greeter = Greeter(listener, word)
            try:
                found = self._answers(
                    {link.index: (FrameKind.DIAL, wanted) for link in self._links},
                    FrameKind.DIALED,
                    _DIALED_S,
                )
            finally:
                greeter.stop()
            reached = [(link.name, each["reached"]) for link, each in zip(self._links, found, strict=True)]
            address, failed = address_of_all(tried, reached)
            if not address:
                fix = (
                    f"give one that they reach instead of --local-addr {chosen}"
                    if chosen
                    else "name the right one by --local-addr IP"
                )
                raise LaunchError(
                    f"{', '.join(failed)} cannot connect to this host, where ranks meet, at "
                    f"{', '.join(by_name)} (TCP, any port); {fix}, or open the firewall's ports "
                    f"{ephemeral_ports()} between the hosts [R115]"
                )
            own = [each["reached"][address] for each in found]
            self._try_mesh(word, own, [each["mesh"] for each in found])
        except BaseException:
            listener.close()
            raise
        return RendezvousResult(
            listener=listener,
            address=address,
            own=own,
            ports=[each["ports"] for each in found],
            cuda=cuda,
        )

    def _try_mesh(self, word: str, own: Sequence[str], ports: Sequence[int]) -> None:
        """Let each host connect to others as its ranks will, to find firewalls."""
        count = len(self._links)
        asked: dict[int, tuple[FrameKind, Mapping[str, Any]]] = {}
        for link in self._links:
            peers = [self._links[(link.index + step) % count] for step in mesh_steps(count)]
            others = [(peer.name, own[peer.index], ports[peer.index]) for peer in peers]
            asked[link.index] = (FrameKind.MESH, {"word": word, "hosts": others})
        found = self._answers(asked, FrameKind.MESHED, _DIALED_S)
        _refuse(
            [
                unconnected(link.name, each["failed"])
                for link, each in zip(self._links, found, strict=True)
                if each["failed"]
            ]
        )

    def _answers(
        self, asked: Mapping[int, tuple[FrameKind, Mapping[str, Any]]], wanted: FrameKind, within: float
    ) -> Sequence[dict[str, Any]]:
        """Return one answer of every agent, in their order.

        Raises:
            LaunchError: an answer is missing.
        """
        return self._results(self._links, self._agents.ask(asked, wanted, within))

    @staticmethod
    def _results(
        links: Sequence[AgentLink], told: tuple[Mapping[int, dict[str, Any]], Sequence[Trouble]]
    ) -> Sequence[dict[str, Any]]:
        answers, troubles = told
        _refuse(troubles)
        return [answers[link.index] for link in links]


def _refuse(troubles: Sequence[Trouble]) -> None:
    if len(troubles) == 1:
        raise LaunchError(str(troubles[0]))
    if troubles:
        raise LaunchError(
            "the hosts cannot run this together:\n  " + "\n  ".join(map(str, troubles)) + " [R100]"
        )
