"""The ranks and servers of one host of a run on several, between their start and the last word about them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ronde.cluster.cores import available_cores
from ronde.cluster.devices import cuda_devices
from ronde.errors import LaunchError
from ronde.launch.announce import say
from ronde.launch.failure_report import ErrorFile, RankDeath
from ronde.launch.frames import Kind, Sender
from ronde.launch.gathering import Gathering
from ronde.launch.go_on_without import goes_on_without
from ronde.launch.host_part import HostPart
from ronde.launch.linux_process import load_prctl, subreaping
from ronde.launch.output_pump import RankOutput, fill_standard_descriptors
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import rank_environment, threads_per_rank
from ronde.launch.rank_process import RankProcess
from ronde.launch.servers import Servers
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.standstill import Standstill, places
from ronde.launch.supervisor import Supervisor
from ronde.launch.sweep import end_leftovers, has_children, remove_shared_memory, remove_temporary_of_the_dead
from ronde.launch.temporary import temporary_folder
from ronde.launch.witness import Witness
from ronde.trace.pulse import Pulse
from ronde.trace.run_directory import RunDirectory

__all__ = ["HostRanks"]

# Of a log's end, for the launcher's report; the whole stays in this host's run directory.
_LOG_BYTES = 64 << 10


class HostRanks:
    """One host's part of a run.

    Attributes:
        lost: the launcher is gone; there is nobody to speak to.
        stopped: the ranks are held, as by Ctrl-Z.
    """

    def __init__(self, part: HostPart, sender: Sender) -> None:
        self.lost = False
        self.stopped = False
        self._part = part
        self._sender = sender
        chosen = Path(part.run_dir) if part.run_dir else None
        self._directory = RunDirectory.of_host(chosen, part.run_id, part.host, os.environ)
        self._devices = cuda_devices(os.environ) if part.cuda else ()
        if part.cuda and len(self._devices) < part.ranks:
            raise LaunchError(
                f"{part.ranks} ranks need {part.ranks} CUDA devices, one each, but this host offers "
                f"{len(self._devices)}; give it fewer slots (HOST:{len(self._devices)})"
            )
        self._pulse = Pulse.create(self._directory.pulse)
        self._ranks: list[RankProcess] = []
        self._outputs: list[RankOutput] = []
        self._servers: Servers | None = None
        self._released = threading.Event()
        self._places = ""
        self._inbox = SignalInbox()
        self._open = contextlib.ExitStack()

    def start(self) -> None:
        """Start all.

        Raises:
            LaunchError: one could not be started; those that were have been ended.
        """
        part = self._part
        fill_standard_descriptors()
        library = load_prctl()
        self._open.enter_context(self._inbox)
        self._open.enter_context(subreaping(library))
        temporary = self._open.enter_context(temporary_folder(part.run_id))
        if part.servers:
            configs = part.server_configs(self._directory)
            self._servers = Servers(configs, self._directory, os.environ, self._say)
        try:
            if self._servers is not None:
                self._servers.start()
            for config in part.rank_configs(self._directory, temporary):
                output = RankOutput.open(
                    self._directory.log(config.rank),
                    shown=config.rank == 0 or part.labelled,
                    like_user=False,
                    label=f"[{config.rank}]" if part.labelled else "",
                )
                self._outputs.append(output)
                self._ranks.append(
                    RankProcess.start(
                        config.rank,
                        part.worker,
                        self._environment(config),
                        streams=(subprocess.DEVNULL, output.stdout, output.stderr),
                        own_group=True,
                        mask=self._inbox.previous_mask,
                        library=library,
                    )
                )
        except BaseException:
            for rank in self._ranks:
                rank.send(signal.SIGKILL)
            if self._servers is not None:
                self._servers.end()
            self._open.close()
            raise
        for output in self._outputs:
            output.start()
        pids = {rank.rank: rank.pid for rank in self._ranks}
        self._gathering = Gathering(self._directory, pids, len(pids))
        # Evidence stays on this host; what it means is judged where all hosts' is known.
        witness = Witness(self._directory, self._gathering, None)
        waiting = Standstill(len(pids), self._directory, part.timeout, witness, self._say)
        self._supervisor = Supervisor(
            self._ranks,
            self._directory,
            self._inbox,
            on_resize=lambda: None,
            on_stop=lambda: None,
            debugged=lambda: self.stopped,
            waiting=waiting,
            witness=witness,
            servers=self._servers,
            spares=lambda death: goes_on_without(
                part.plan, death, self._directory, self._say, saves=bool(part.checkpoint)
            ),
            news=self._tell,
            alone=False,
        )

    def watch(self) -> dict[str, Any]:
        """See the ranks through to their end, and say how it was."""
        remove_temporary_of_the_dead()
        supervisor = self._supervisor
        try:
            supervisor.watch()
            if supervisor.exit_code() == 0:
                self._outlast_the_others()
        finally:
            if self._servers is not None:
                self._servers.end()
        left = end_leftovers(self._part.run_id) if has_children() else []
        for output in self._outputs:
            output.drain(until=lambda: self.lost)
        remove_shared_memory(supervisor.pids | {process.pid for process in left})
        in_mid_line = self._part.first_rank == 0 and self._outputs[0].stderr_in_mid_line
        self._open.close()
        if supervisor.exit_code() == 0 and self._directory.is_default:
            self._directory.remove_server_states()
        return {
            "exit_code": supervisor.exit_code(),
            "standstill": supervisor.standstill,
            "places": self._places,
            "in_mid_line": in_mid_line,
            "left": [f"{process.name} (process {process.pid})" for process in left],
            "directory": str(self._directory.path),
        }

    def _outlast_the_others(self) -> None:
        """Servers serve the ranks of all hosts, so they end after the last of these."""
        with contextlib.suppress(OSError):
            self._sender.send(Kind.ENDED)
            if self._servers is not None:
                self._released.wait()

    def release(self) -> None:
        """The ranks of all hosts have ended. From any thread."""
        self._released.set()

    def signal(self, number: int) -> None:
        """Give the ranks a signal that the launcher was sent. From any thread."""
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.stopped = number == signal.SIGSTOP
            for rank in self._ranks:
                rank.send_to_group(number)
        else:
            os.kill(os.getpid(), number)  # the supervisor finds it in its inbox

    def end(self, *, look: bool = False) -> None:
        """End the ranks: one on another host has failed. From any thread.

        `look`: it is told where they are, for those elsewhere have waited for them.
        """
        if look and not self._places:
            self._places = places(self._gathering.gather("asked"))
        self.release()
        self._supervisor.end_with_others()
        self._inbox.wake()

    def lose(self) -> None:
        """The launcher is gone. From any thread."""
        self.lost = True
        self.signal(signal.SIGCONT)
        self.end()

    def pulse(self) -> tuple[int, int]:
        """Steps and samples so far, as rank 0 has them."""
        return (self._pulse.steps, self._pulse.samples) if self._pulse is not None else (0, 0)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """What the launcher's run directory should hold of this host's: summaries, the ends of logs."""
        for rank in self._ranks:
            for path in (self._directory.summary(rank.rank), self._directory.log(rank.rank)):
                with contextlib.suppress(OSError), path.open("rb") as stream:
                    stream.seek(max(0, path.stat().st_size - _LOG_BYTES))
                    yield path.name, stream.read()

    def _environment(self, config: RankConfig) -> dict[str, str]:
        part = self._part
        threads = threads_per_rank(os.environ, asked=part.threads, cores=available_cores(), ranks=part.ranks)
        return rank_environment(
            os.environ,
            config,
            run_id=part.run_id,
            threads=threads,
            device=self._devices[config.local_rank] if self._devices else None,
        )

    def _tell(self, news: RankDeath | ErrorFile) -> None:
        kind = Kind.DEATH if isinstance(news, RankDeath) else Kind.ERROR
        with contextlib.suppress(OSError):
            self._sender.send(kind, dataclasses.asdict(news))

    def _say(self, words: str) -> None:
        say(words, new_line=bool(self._outputs) and self._outputs[0].stderr_in_mid_line)
