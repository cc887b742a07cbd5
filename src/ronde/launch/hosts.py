"""Start the ranks of one run on several hosts and see them through to the end.

This process hosts the store (in a child of its own), so no rank's death takes it away. On every host an agent
starts the host's ranks; what agents say comes here as news, and what the user sends goes to all of them.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ronde.cluster.reach import Greeter, candidates, is_this_host, listen_everywhere
from ronde.errors import LaunchError, UsageError
from ronde.launch.agent import BEAT_S
from ronde.launch.agent_link import AgentLink, News
from ronde.launch.bytes_out import write_all
from ronde.launch.frames import Kind, unpack
from ronde.launch.host_checks import address_of_all, differences, host_environment, mesh_steps
from ronde.launch.host_part import HostPart
from ronde.launch.hosts_end import HostsEnd
from ronde.launch.job import Job, Outcome
from ronde.launch.output_pump import fill_standard_descriptors
from ronde.launch.progress_line import ProgressLine
from ronde.launch.remote_command import Way, agent_line, why_it_failed
from ronde.launch.screen import Screen
from ronde.launch.server_config import ServerConfig, rule_of_servers
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.store_process import STORE, start_store
from ronde.launch.supervisor import ENDING
from ronde.plan import Plan, read_plan
from ronde.trace.pulse import Pulse

__all__ = ["Hosts", "launch_on_hosts"]

# How long an agent may take to come up (ssh, and Python from a slow file system), and to try addresses.
_READY_S = 60.0
_DIALED_S = 30.0
# Without a sign of an agent for so long, its host counts as lost.
_SILENCE_S = 20.0
# After a failure agents end their ranks by the supervisor's timetable, which takes this long at most.
_ENDED_S = 14.0
# How long the commands that led to agents have to leave when all is over.
_LEAVE_S = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """Where ranks go.

    Attributes:
        shares: the hosts by name, each with its number of ranks.
        way: how they are reached; this host itself needs none, unless `always`.
        always: the way is taken to this host too: the user has named the command.
        variables: environment that was asked for, `NAME` or `NAME=VALUE`.
        local_address: by which other hosts reach this one; "": to be found by asking them.
        store: the command of the store's process.
        reference: what `agent.about_this_host` says where hosts are to be alike to that one; None: to the
            first.
    """

    shares: tuple[tuple[str, int], ...]
    way: Way = dataclasses.field(default_factory=Way)
    always: bool = False
    variables: tuple[str, ...] = ()
    local_address: str = ""
    store: tuple[str, ...] = STORE
    reference: Mapping[str, Any] | None = None


class _Interrupted(Exception):
    """A signal has come before any rank was started."""

    def __init__(self, number: int) -> None:
        self.number = number


def launch_on_hosts(job: Job, hosts: Hosts, is_to_end: threading.Event | None = None) -> Outcome:
    """Run a job on these hosts to its end; the report of a failure has been printed when this returns.

    Args:
        is_to_end: when it is set the ranks are asked to end, as by SIGTERM.

    Raises:
        UsageError: what is asked for is not for several hosts.
        LaunchError: a host cannot take part, a line for each with what to do; no rank was started.
    """
    if job.server_state:
        raise UsageError(
            "--server-state takes tables over on one host only; leave out -H, or begin with the checkpoint"
        )
    fill_standard_descriptors()
    with SignalInbox() as inbox:
        run = _HostsRun(job, hosts, inbox, is_to_end or threading.Event())
        try:
            run.meet()
            run.start()
            run.watch()
        except _Interrupted as interrupted:
            return Outcome(exit_code=128 + interrupted.number)
        finally:
            run.close()
        return run.end.outcome()


class _HostsRun:
    """One run: the links to its agents, and how it ends."""

    def __init__(self, job: Job, hosts: Hosts, inbox: SignalInbox, is_to_end: threading.Event) -> None:
        self._is_to_end = is_to_end
        self._asked_to_end = False
        self._job = job
        self._hosts = hosts
        self._inbox = inbox
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._screen = Screen.of_user(job.environment) if job.shown and not job.quiet else None
        self._in_mid_line = False
        self._pulse = Pulse.create(job.run_directory.pulse)
        self._links = self._make_links()
        self._started: list[AgentLink] = []
        self._heard: dict[int, float] = {}
        self._skew: dict[int, float] = {}
        self._store: subprocess.Popen[bytes] | None = None
        self._interruptions = 0
        self._next_beat = 0.0
        self._listener = listen_everywhere()
        self._cuda = False
        # What the hosts have found out: where the store is, their own addresses, and ports for servers.
        self._address, self._port = "", 0
        self._own: dict[int, str] = {}
        self._ports: dict[int, list[int]] = {}
        self.end = HostsEnd(job, self._links, lambda: self._in_mid_line)

    def _make_links(self) -> list[AgentLink]:
        links: list[AgentLink] = []
        first = self._job.first_rank
        for index, (name, ranks) in enumerate(self._hosts.shares):
            links.append(AgentLink(index, name, first, ranks, news=self._news, show=self._show))
            first += ranks
        return links

    # Before the start.

    def meet(self) -> None:
        """Reach every host, and see that they can run this together.

        Raises:
            LaunchError: they cannot.
        """
        given, missing = host_environment(self._job.environment, self._hosts.variables)
        if missing:
            names = ", ".join(missing)
            raise UsageError(
                f"--env {names} is not set here; set it, or give its value: --env {missing[0]}=VALUE"
            )
        here = {link.index for link in self._links if self._is_here(link)}
        line = agent_line(sys.executable, os.getcwd(), self._for_python())
        for link in self._links:
            words = (
                ["sh", "-c", line]
                if link.index in here
                else self._hosts.way.words(link.name, line, link.ranks)
            )
            link.start(words, self._inbox.previous_mask)
            self._started.append(link)
        for link in self._links:
            link.listen()
        script = self._job.program()
        hello = {"environment": given, "script": script, "cwd": os.getcwd()}
        for link in self._links:
            link.send(Kind.HELLO, hello)
        found = self._answers(Kind.READY, _READY_S)
        for link in self._links:
            self._skew[link.index] = found[link.index]["time"] - found[link.index]["received"]
        _refuse(
            differences(
                [(link.name, link.ranks, found[link.index]) for link in self._links],
                script,
                sys.executable,
                self._hosts.reference,
            )
        )
        self._cuda = bool(found[0]["devices"])
        read_plan(self._job.plan, ranks=self._job.ranks, device="cuda" if self._cuda else "cpu")
        self._find_addresses([link.name for link in self._links if link.index not in here])

    def _is_here(self, link: AgentLink) -> bool:
        return not self._hosts.always and is_this_host(link.name)

    def _for_python(self) -> dict[str, str]:
        """What the agent's interpreter must have when it starts."""
        value = self._job.environment.get("PYTHONPATH", "")
        paths = [os.path.abspath(path) for path in value.split(os.pathsep) if path]
        return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}

    def _find_addresses(self, others: list[str]) -> None:
        """Ask the hosts by which address they reach the store, and which is their own on the way there."""
        chosen = self._hosts.local_address
        tried = (chosen,) if chosen else candidates(others)
        by_name = tried if chosen else tried[:-1]
        port, word = self._listener.getsockname()[1], os.urandom(16).hex()
        servers = 0 if self._job.servers else Plan.parse(self._job.plan).state.server_count
        wanted = {"addresses": tried, "port": port, "word": word, "ports": -(-servers // len(self._links))}
        greeter = Greeter(self._listener, word)
        try:
            for link in self._links:
                link.send(Kind.DIAL, wanted)
            found = self._answers(Kind.DIALED, _DIALED_S)
        finally:
            greeter.stop()
        reached = [(link.name, found[link.index]["reached"]) for link in self._links]
        address, failed = address_of_all(tried, reached)
        if not address:
            mend = (
                f"give one that they reach instead of --local-addr {chosen}"
                if chosen
                else "name the right one by --local-addr IP"
            )
            raise LaunchError(
                f"{', '.join(failed)} cannot connect to this host, where ranks meet, at {', '.join(by_name)} "
                f"(TCP, any port); {mend}, or open the firewall's ports {_ephemeral()} between the hosts"
            )
        self._address, self._port = address, port
        self._own = {link.index: found[link.index]["reached"][address] for link in self._links}
        self._ports = {link.index: found[link.index]["ports"] for link in self._links}
        self._try_mesh(word, {link.index: found[link.index]["mesh"] for link in self._links})

    def _try_mesh(self, word: str, ports: dict[int, int]) -> None:
        """Let every host connect to others, as its ranks will: a firewall may stand between two of them."""
        count = len(self._links)
        for link in self._links:
            peers = [self._links[(link.index + step) % count] for step in mesh_steps(count)]
            hosts = [(peer.name, self._own[peer.index], ports[peer.index]) for peer in peers]
            link.send(Kind.MESH, {"word": word, "hosts": hosts})
        found = self._answers(Kind.MESHED, _DIALED_S)
        _refuse(
            [
                f"{link.name} cannot connect to {', '.join(failed)} (TCP, any port), and its ranks would "
                f"have to; open the firewall's ports {_ephemeral()} between the hosts"
                for link in self._links
                if (failed := found[link.index]["failed"])
            ]
        )

    def _answers(self, wanted: Kind, within: float) -> dict[int, dict[str, Any]]:
        """One answer of every agent.

        Raises:
            LaunchError: some have none.
        """
        answers: dict[int, dict[str, Any]] = {}
        problems: list[str] = []
        waited_for = {link.index for link in self._links}
        until = time.monotonic() + within
        while waited_for and time.monotonic() < until:
            for link, kind, content in self._received():
                waited_for.discard(link.index)
                if kind is wanted:
                    answers[link.index] = {**unpack(content), "received": time.time()}
                else:
                    problems.append(self._why_it_failed(link))
            self._hear_signals(0.2 if self._news.empty() else 0.0, started=False)
        problems += [
            f"{self._links[index].name} has not answered for {within:g} s; see whether it is overloaded: "
            f"{self._hosts.way.try_by_hand(self._links[index].name)}"
            for index in sorted(waited_for)
        ]
        _refuse(problems)
        return answers

    def _why_it_failed(self, link: AgentLink) -> str:
        return why_it_failed(
            link.name, link.code, link.said, self._hosts.way, python=sys.executable, directory=os.getcwd()
        )

    # The run.

    def start(self) -> None:
        """Start the store and every host's part."""
        self._store = start_store(
            self._listener, self._job.run_directory.store_log, linger=0, command=self._hosts.store
        )
        self._listener.close()
        endpoints, token, servers = self._place_servers()
        for link in self._links:
            part = HostPart(
                run_id=f"{self._job.run_directory.run_id}{self._job.attempt:02x}{link.index:04x}",
                run_dir="" if self._job.run_directory.is_default else str(self._job.run_directory.path),
                host=link.index,
                hosts=len(self._links),
                first_rank=link.first_rank,
                ranks=link.ranks,
                world_size=self._job.ranks,
                store=f"tcp://{self._address}:{self._port}",
                master_address=self._address,
                master_port=self._port,
                address=self._own[link.index],
                cuda=self._cuda,
                one_stream=os.path.samestat(os.fstat(1), os.fstat(2)),
                script=self._job.script,
                arguments=self._job.arguments,
                module=self._job.module,
                plan=self._job.plan,
                seed=self._job.seed,
                native=self._job.native,
                extensions=self._job.extensions,
                threads=self._job.threads,
                timeout=self._job.timeout,
                labelled=self._job.labelled,
                quiet=self._job.quiet,
                publish=self._job.publish,
                checkpoint=self._job.checkpoint,
                checkpoint_every=self._job.checkpoint_every,
                checkpoint_keep=self._job.checkpoint_keep,
                resume=self._job.resume,
                endpoints=endpoints,
                server_token=token,
                servers=tuple(servers[link.index]),
                worker=self._job.worker,
            )
            self._heard[link.index] = time.monotonic()
            link.send(Kind.START, part.to_fields())

    def _place_servers(self) -> tuple[tuple[str, ...], str, list[list[dict[str, Any]]]]:
        """Endpoints and token of all servers, and what is started on each host: they go around."""
        job, plan = self._job, Plan.parse(self._job.plan)
        placed: list[list[dict[str, Any]]] = [[] for _ in self._links]
        count = plan.state.server_count
        if job.servers or not count:
            return job.servers, job.server_token, placed
        token = os.urandom(16).hex()
        endpoints: list[str] = []
        for index in range(count):
            host = index % len(self._links)
            port = self._ports[host][index // len(self._links)]
            endpoints.append(f"tcp://{self._own[host]}:{port}")
            config = ServerConfig(
                index=index,
                servers=count,
                endpoint=endpoints[-1],
                token=token,
                workers=job.ranks,
                update=rule_of_servers(plan),
                staleness=plan.update.staleness or 0,
                durability=job.durability,
                sync=job.durability_sync,
            )
            placed[host].append(dataclasses.asdict(config))
        return tuple(endpoints), token, placed

    def watch(self) -> None:
        """Return when every host's part has ended, or its agent is gone."""
        line = ProgressLine(self._screen, self._pulse) if self._screen and self._pulse else None
        if line is not None:
            line.start()
        try:
            while not all(link.over for link in self._links):
                self._hear_signals(0.2 if self._news.empty() else 0.0, started=True)
                if self._is_to_end.is_set() and not self._asked_to_end:
                    self._asked_to_end = True
                    self._handle(signal.SIGTERM, started=True)
                for link, kind, content in self._received():
                    self._heard[link.index] = time.monotonic()
                    self._take(link, kind, content)
                self._keep_time()
        finally:
            if line is not None:
                line.stop()

    def _received(self) -> list[News]:
        found: list[News] = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def _take(self, link: AgentLink, kind: Kind | None, content: bytes) -> None:
        if kind is Kind.BEAT:
            if link.index == 0 and self._pulse is not None:
                steps, samples = (int(word) for word in content.decode().strip("[]").split(","))
                self._pulse.beat(steps, samples)
        elif kind is Kind.DEATH or kind is Kind.ERROR:
            self.end.take_news(kind, unpack(content), self._skew[link.index])
        elif kind is Kind.FILE:
            self.end.take_file(content)
        elif kind is Kind.ENDED:
            link.ended = True
            self._release()
        elif kind is Kind.LAST:
            link.over = True
            self.end.take_last(link, unpack(content))
        elif kind is None and not link.over:
            link.over = True
            self.end.take_loss(link, link.said, link.code)
        if self.end.failed_at is not None:
            self._end_all()

    def _release(self) -> None:
        """Let servers end, when the ranks of all hosts have."""
        if all(link.ended or link.over for link in self._links):
            for link in self._links:
                if not link.over:
                    link.send(Kind.RELEASE)

    def _end_all(self) -> None:
        for link in self._links:
            if not link.over:
                link.send(Kind.END, b"look" if self.end.stood_still else b"")

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for link in self._links:
                if not link.over:
                    link.send(Kind.BEAT)
        for link in self._links:
            if not link.over and now - self._heard[link.index] > _SILENCE_S:
                link.over = True
                self.end.take_loss(link, [f"no sign of it for {_SILENCE_S:g} s"], 0)
                self._end_all()
        if self.end.failed_at is not None and now - self.end.failed_at > _ENDED_S:
            for link in self._links:
                if not link.over:
                    link.close()
                    if now - self.end.failed_at > _ENDED_S + 3:
                        link.over = True
        if self._store is not None and self._store.poll() is not None and self.end.failed_at is None:
            self.end.take_end_of_store(self._store.returncode)
            self._end_all()

    # Signals.

    def _hear_signals(self, within: float, *, started: bool) -> None:
        message = self._inbox.wait(within)
        while message is not None:
            self._handle(message.si_signo, started=started)
            message = self._inbox.wait(0)

    def _handle(self, number: int, *, started: bool) -> None:
        if number in (signal.SIGCHLD, signal.SIGWINCH):
            return
        if number == signal.SIGTSTP:
            self._stop_and_continue()
        elif number in ENDING and not started:
            raise _Interrupted(number)
        else:
            if number in ENDING:
                self._interruptions += number == signal.SIGINT
                self.end.interrupt(number, again=self._interruptions > 1)
            for link in self._links:
                if not link.over:
                    link.send(Kind.SIGNAL, str(number))
                    if self._interruptions > 2:
                        link.close()

    def _stop_and_continue(self) -> None:
        """Ctrl-Z: the ranks stop with this process, and go on when the shell continues it."""
        for link in self._links:
            link.send(Kind.SIGNAL, str(int(signal.SIGSTOP)))
        if self._screen is not None:
            self._screen.wipe()
        os.kill(os.getpid(), signal.SIGSTOP)
        for link in self._links:
            self._heard[link.index] = time.monotonic()
            link.send(Kind.SIGNAL, str(int(signal.SIGCONT)))

    # Output, and the end.

    def _show(self, descriptor: int, data: bytes) -> None:
        if not self._job.shown:
            return
        if self._screen is not None and self._screen.is_behind(descriptor):
            self._screen.pass_on(descriptor, data)
        else:
            write_all(descriptor, data)
        if os.path.samestat(os.fstat(descriptor), os.fstat(2)):
            self._in_mid_line = data[-1:] != b"\n"

    def close(self) -> None:
        """End what this process has started."""
        self._listener.close()
        for link in self._started:
            link.close()
        until = time.monotonic() + _LEAVE_S
        for link in self._started:
            link.end(until)
        if self._store is not None:
            self._store.kill()
            self._store.wait()


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
