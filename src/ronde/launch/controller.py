"""Start the ranks of one run on several hosts and see them through to the end.

This process hosts the store (in a child of its own), so no rank's death takes it away. On every host an agent
starts the host's ranks; what agents say comes here as news, and what the user sends goes to all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ronde.launch.agent import BEAT_S
from ronde.launch.agent_link import AgentLink, News
from ronde.launch.arriving_files import ArrivingFiles
from ronde.launch.bytes_out import write_all
from ronde.launch.carried_versions import newest_version
from ronde.launch.failure import ENDING, Ends, ErrorFile, RankDeath, shell_code
from ronde.launch.frames import Kind, unpack
from ronde.launch.hosts import Hosts
from ronde.launch.job import Job, Outcome
from ronde.launch.look_at_nodes import LookAtNodes
from ronde.launch.meeting import Meeting, Met
from ronde.launch.mirror import Piece, is_mirrored
from ronde.launch.node_spec import NodeSpec
from ronde.launch.nodes_on_record import NodesOnRecord
from ronde.launch.output_pump import fill_standard_descriptors
from ronde.launch.progress_line import shown_progress
from ronde.launch.run_end import Explain, NodeOfRun, RunEnd
from ronde.launch.run_spec import RunSpec
from ronde.launch.screen import Screen
from ronde.launch.server_config import ServerConfig, with_servers
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.standstill import notice_after
from ronde.launch.store_process import start_store
from ronde.plan import Plan
from ronde.trace.events import append_events, events_path
from ronde.trace.evidence import Evidence
from ronde.trace.lockstep_board import Standing
from ronde.trace.pulse import Pulse

__all__ = ["launch_on_hosts"]

# Without a sign of an agent for so long, its host counts as lost.
_SILENCE_S = 20.0
# After a failure agents end their ranks by the supervisor's timetable, which takes this long at most.
_ENDED_S = 14.0
# How long the commands that led to agents have to leave when all is over.
_LEAVE_S = 2.0


class _Interrupted(Exception):
    """A signal has come before any rank was started."""

    def __init__(self, number: int) -> None:
        self.number = number


def launch_on_hosts(
    job: Job, hosts: Hosts, explain: Explain | None = None, is_to_end: threading.Event | None = None
) -> Outcome:
    """Run a job on these hosts to its end; the report of a failure has been printed when this returns.

    Args:
        explain: says what evidence of a stall or a failure means.
        is_to_end: when it is set the ranks are asked to end, as by SIGTERM.

    Raises:
        UsageError: a variable is not set, or a folder cannot be written.
        LaunchError: a host cannot take part, a line for each with what to do; no rank was started.
    """
    fill_standard_descriptors()
    with SignalInbox() as inbox:
        run = _Controller(job, hosts, inbox, explain, is_to_end or threading.Event())
        try:
            run.start()
            run.watch()
        except _Interrupted as interrupted:
            return Outcome(exit_code=128 + interrupted.number)
        finally:
            run.close()
        return run.end.outcome()


class _Controller:
    """One run: the links to its agents, and how it ends."""

    def __init__(
        self,
        job: Job,
        hosts: Hosts,
        inbox: SignalInbox,
        explain: Explain | None,
        is_to_end: threading.Event,
    ) -> None:
        self._is_to_end = is_to_end
        self._asked_to_end = False
        self._job = job
        self._hosts = hosts
        self._inbox = inbox
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._screen = Screen.of_user(job.environment) if job.shown and not job.run.quiet else None
        self._in_mid_line = False
        self._pulse = Pulse.create(job.run_directory.pulse)
        self._arriving = ArrivingFiles(job)
        self._links = self._make_links()
        self._nodes = NodesOnRecord(job, self._links)
        self._heard: dict[int, float] = {}
        self._store: subprocess.Popen[bytes] | None = None
        self._interruptions = 0
        self._next_beat = 0.0
        self._failed_at: float | None = None
        self._look: LookAtNodes | None = None
        self._stalled_at = -math.inf
        self._ends = Ends(job.first_rank)
        nodes = [
            NodeOfRun(name=link.name, first_rank=link.first_rank, ranks=link.ranks) for link in self._links
        ]
        self.end = RunEnd(job, self._ends, nodes, explain, lambda: self._in_mid_line)

    def _make_links(self) -> list[AgentLink]:
        links: list[AgentLink] = []
        first = self._job.first_rank
        for index, (name, ranks) in enumerate(self._hosts.shares):
            link = AgentLink(
                index, name, first, ranks, news=self._news, show=self._show, save=self._arriving.take
            )
            links.append(link)
            first += ranks
        return links

    def start(self) -> None:
        """Start the store and every host's part, when all hosts have been reached.

        Raises:
            UsageError, LaunchError: as in `Meeting.meet`.
        """
        meeting = Meeting(
            self._job,
            self._hosts,
            self._links,
            self._news,
            lambda seconds: self._hear_signals(seconds, started=False),
        )
        met = meeting.meet(self._inbox)
        self.end.place(met.own)
        for link in self._links:
            if trouble := link.clock.first.trouble(link.name):
                self.end.notice(str(trouble))
        if met.far:
            self.end.notice(self._arriving.notice([self._links[index].name for index in met.far]))
        with met.listener:
            log = self._job.run_directory.store_log
            self._store = start_store(met.listener, log, linger=0, command=self._hosts.store)
            run, servers = self._place_servers(met)
            for link in self._links:
                part = NodeSpec(
                    run=run,
                    run_id=self._job.node_run_id(link.index),
                    run_dir=self._job.chosen_directory,
                    host=link.index,
                    hosts=len(self._links),
                    first_rank=link.first_rank,
                    ranks=link.ranks,
                    world_size=self._job.ranks,
                    store=f"tcp://{met.address}:{met.port}",
                    master_address=met.address,
                    master_port=met.port,
                    address=met.own[link.index],
                    cuda=met.cuda,
                    one_stream=os.path.samestat(os.fstat(1), os.fstat(2)),
                    servers=tuple(servers[link.index]),
                    is_far=link.index in met.far,
                )
                self._heard[link.index] = time.monotonic()
                link.send(Kind.START, part.to_fields())

    def _place_servers(self, met: Met) -> tuple[RunSpec, Sequence[Sequence[ServerConfig]]]:
        """The run with its servers, and those that are started on each host: they go around."""
        run, hosts = self._job.run, len(self._links)
        if run.publish:
            run = dataclasses.replace(run, published=newest_version(self._job.run_directory.path))
        count = 0 if run.servers else Plan.parse(run.plan).state.server_count
        if not count:
            return run, [() for _ in self._links]
        endpoints = [
            f"tcp://{met.own[index % hosts]}:{met.ports[index % hosts][index // hosts]}"
            for index in range(count)
        ]
        run, configs = with_servers(run, endpoints, self._job.ranks)
        return run, [configs[host::hosts] for host in range(hosts)]

    def watch(self) -> None:
        """Return when every host's part has ended, or its agent is gone."""
        with shown_progress(self._screen, self._pulse):
            while not all(link.over for link in self._links):
                self._hear_signals(0.2 if self._news.empty() else 0.0, started=True)
                if self._is_to_end.is_set() and not self._asked_to_end:
                    self._asked_to_end = True
                    self._handle(signal.SIGTERM, started=True)
                while not self._news.empty():
                    link, kind, content = self._news.get()
                    if kind is not None:
                        self._heard[link.index] = time.monotonic()
                    self._take(link, kind, content)
                self._keep_time()
                self._end_if_failed()
        self._nodes.write_nodes()

    # News.

    def _take(self, link: AgentLink, kind: Kind | None, content: bytes) -> None:
        if kind is Kind.BEAT:
            fields = unpack(content)
            self._nodes.waits(link, fields["waiting"])
            if link.index == 0 and self._pulse is not None:
                self._pulse.beat(fields["steps"], fields["samples"])
        elif kind is Kind.PIECE:
            self._take_piece(link, Piece.from_bytes(content))
        elif kind is Kind.STARTED:
            self._nodes.started(link, unpack(content)["pids"])
        elif kind is Kind.DEATH:
            self._ends.deaths.append(RankDeath(**self._by_our_clock(link, unpack(content))))
        elif kind is Kind.ERROR:
            self._take_error(ErrorFile.from_fields(self._by_our_clock(link, unpack(content))))
        elif kind is Kind.STALL:
            self._take_stall(link, unpack(content))
        elif kind is Kind.EVIDENCE:
            self._take_evidence(link, Evidence.from_fields(self._by_our_clock(link, unpack(content))))
        elif kind is Kind.LOST:
            self.end.abort("server", content.decode())
        elif kind is Kind.NOTICE:
            self.end.notice(content.decode())
        elif kind is Kind.ENDED:
            link.ended = True
            self._release()
        elif kind is Kind.LAST:
            self._take_last(link, unpack(content))
        elif kind is None and not link.over:
            self._lose(link, link.said, link.code)

    def _by_our_clock(self, link: AgentLink, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {**fields, "time": fields["time"] - link.clock.first.wall}

    def _take_piece(self, link: AgentLink, piece: Piece) -> None:
        """Part of a file of a host's run directory, for ours."""
        directory = self._job.run_directory.path
        if piece.name == events_path(directory).name:
            append_events(directory, piece.data, later=-link.clock.first.wall)
        elif is_mirrored(piece.name):
            with contextlib.suppress(OSError):
                piece.write_into(directory)

    def _take_error(self, error: ErrorFile) -> None:
        self._ends.errors[error.rank] = error
        with contextlib.suppress(OSError):
            path = self._job.run_directory.error(error.rank)
            path.write_text(json.dumps(dataclasses.asdict(error)), encoding="utf-8")

    def _take_last(self, link: AgentLink, fields: Mapping[str, Any]) -> None:
        """A host's part has ended, or was refused there."""
        link.over = True
        if "refused" in fields:
            self.end.abort("refused", fields["refused"], link.index)
        else:
            standings = [Standing.from_fields(each) for each in fields["standings"]]
            evidence = Evidence.from_fields(self._by_our_clock(link, fields["evidence"]))
            self.end.ended(link.index, evidence, standings, fields["left"])

    def _lose(self, link: AgentLink, said: Sequence[str], code: int) -> None:
        """An agent is gone without a last word."""
        link.over = True
        self._note_silences()
        why = next((line.strip() for line in reversed(said) if line.strip()), f"exit code {shell_code(code)}")
        ranks = ", ".join(str(link.first_rank + place) for place in range(link.ranks))
        self.end.abort(
            "host",
            f"the connection to {link.name} is lost ({why}), and with it "
            f"rank{'s' if link.ranks > 1 else ''} {ranks}; see whether that host is up; what ran "
            "there ends by itself",
            link.index,
        )

    # Looks at the ranks of all hosts.

    def _take_stall(self, link: AgentLink, fields: Mapping[str, Any]) -> None:
        """Ranks of a host wait; where those of the others are tells why."""
        is_over = bool(fields["is_over"])
        if not is_over and time.monotonic() - self._stalled_at < notice_after(self._job.run.timeout):
            return  # another host has said so
        self._stalled_at = time.monotonic()
        self._ask(
            "stall",
            lambda parts: self.end.stalled(parts, is_over=is_over),
            {link.index: Evidence.from_fields(self._by_our_clock(link, fields["evidence"]))},
        )

    def _take_evidence(self, link: AgentLink, evidence: Evidence) -> None:
        if evidence.reason == "failure":
            self.end.froze(link.index, evidence)
        elif self._look is not None:
            self._look.take(link.index, evidence)

    def _ask(
        self,
        reason: str,
        told: Callable[[Mapping[int, Evidence]], object],
        known: Mapping[int, Evidence],
    ) -> None:
        """Have all hosts look at their ranks, unless they do so already; `told` is given what they find."""
        if self._look is None:
            self._look = LookAtNodes(told, known)
            for link in self._links:
                if not link.over and link.index not in known:
                    link.send(Kind.LOOK, reason)

    def _keep_looks(self) -> None:
        """Conclude a look that is complete, and begin the one that `ronde doctor` asks for."""
        look = self._look
        if look is not None and look.is_complete({link.index for link in self._links if not link.over}):
            self._look = None
            self._note_silences()
            look.conclude()
        question = self._job.run_directory.question
        if self._look is None and question.exists():
            with contextlib.suppress(OSError):
                question.unlink()
            self._ask("asked", self.end.asked, {})

    def _note_silences(self) -> None:
        now = time.monotonic()
        self.end.hear_nothing_of({index: now - heard for index, heard in self._heard.items()})

    # The end.

    def _end_if_failed(self) -> None:
        """End all ranks, once."""
        if self._failed_at is None and self._ends.has_failed:
            self._failed_at = time.monotonic()
            self._send_all(Kind.END)

    def _release(self) -> None:
        """Let servers end, when the ranks of all hosts have."""
        if all(link.ended or link.over for link in self._links):
            self._send_all(Kind.RELEASE)

    def _send_all(self, kind: Kind, content: str = "") -> None:
        for link in self._links:
            if not link.over:
                link.send(kind, content)

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for link in self._links:
                if not link.over:
                    link.ask_clock()
            self._nodes.write_waiting()
        for link in self._links:
            if not link.over and now - self._heard[link.index] > _SILENCE_S:
                self._lose(link, [f"no sign of it for {_SILENCE_S:g} s"], 0)
        ending_for = 0.0 if self._failed_at is None else now - max(self._failed_at, self._arriving.latest)
        if ending_for > _ENDED_S:
            for link in self._links:
                if not link.over:
                    link.close()
                    link.over = ending_for > _ENDED_S + 3
        if self._store is not None and self._store.poll() is not None and self._failed_at is None:
            self.end.abort(
                "store",
                f"the store, where ranks meet, has ended (exit code {shell_code(self._store.returncode)}); "
                "start the run again",
            )
        self._keep_looks()

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
                if self._failed_at is None:
                    self._ends.interrupted_by = number
                self._ends.killed_by_user |= self._interruptions > 1
            self._send_all(Kind.SIGNAL, str(number))
            if self._interruptions > 2:
                for link in self._links:
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

    # Output, and the last things.

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
        started = [link for link in self._links if link.has_started]
        for link in started:
            link.close()
        until = time.monotonic() + _LEAVE_S
        for link in started:
            link.end(until)
        if self._store is not None:
            self._store.kill()
            self._store.wait()
