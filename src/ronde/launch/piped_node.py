"""The agent's side of a node: carries out the launcher's frames, and sends events."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, final

from ronde.cluster.devices import cuda_devices
from ronde.errors import LaunchError
from ronde.launch.checkpoint_transfer import CheckpointSender, carried_folder
from ronde.launch.frames import FrameKind, Sender
from ronde.launch.linux_process import load_prctl, subreaping
from ronde.launch.mirror import DirectoryChanges
from ronde.launch.node_runner import NodeRunner
from ronde.launch.node_spec import NodeSpec
from ronde.launch.outlet import Outlet
from ronde.launch.output_pump import RankOutput, fill_standard_descriptors
from ronde.launch.pipe_events import PipeEvents
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.signal_router import SignalRouter
from ronde.launch.version_transfer import VersionSender
from ronde.launch.worker_group import start_worker_group
from ronde.trace.evidence_collector import read_standings
from ronde.trace.progress import Pulse
from ronde.trace.run_directory import RunDirectory
from ronde.trace.temporary_folder import temporary_folder
from ronde.trace.waiting import waiting_now

__all__ = ["PipedNode"]


@final
class _PipeOutlet(Outlet):
    """Output that is passed on by the agent."""

    def __init__(self, node: NodeSpec, directory: RunDirectory) -> None:
        self.stdin, self.shares_group, self.has_terminal = subprocess.DEVNULL, False, False
        self.is_stopped = False
        self._labelled, self._directory = node.run.labelled, directory

    def open(self, rank: int) -> RankOutput:
        return RankOutput.open(
            self._directory.log(rank),
            shown=rank == 0 or self._labelled,
            like_user=False,
            label=f"[{rank}]" if self._labelled else "",
        )

    @property
    def is_held(self) -> bool:
        return self.is_stopped

    def wipe(self) -> None:
        """No-op: the terminal belongs to the launcher."""


@final
class PipedNode:
    """The ranks of an agent's host.

    Attributes:
        is_lost: whether the launcher is gone.
    """

    def __init__(self, node: NodeSpec, sender: Sender) -> None:
        self.is_lost = False
        self._node, self._sender = node, sender
        chosen = Path(node.run_dir) if node.run_dir else None
        self._directory = RunDirectory.of_host(chosen, node.run_id, node.host, os.environ)
        self._devices = cuda_devices(os.environ) if node.cuda else ()
        if node.cuda and len(self._devices) < node.ranks:
            raise LaunchError(
                f"{node.ranks} ranks need {node.ranks} CUDA devices, one each, but this host offers "
                f"{len(self._devices)}; give it fewer slots (HOST:{len(self._devices)}) [R109]"
            )
        self._pulse = Pulse.create(self._directory.pulse)
        self._outlet = _PipeOutlet(node, self._directory)
        self._events = PipeEvents(sender, node.first_rank)
        self._mirror = DirectoryChanges(self._directory.path)
        self._sending, self._carrying = threading.Lock(), threading.Lock()
        self._checkpoints = CheckpointSender(carried_folder(self._directory.path))
        self._checkpoints.pass_over()
        self._versions = VersionSender(self._directory.path)
        self._open = contextlib.ExitStack()

    @property
    def is_stopped(self) -> bool:
        """Return whether the ranks are stopped, as by Ctrl-Z."""
        return self._outlet.is_stopped

    def start(self) -> None:
        """Start all ranks.

        Raises:
            LaunchError: a rank could not be started; started ones have been ended.
        """
        fill_standard_descriptors()
        with contextlib.ExitStack() as opened:
            self._inbox = opened.enter_context(SignalInbox())
            opened.enter_context(subreaping(load_prctl()))
            temporary = opened.enter_context(temporary_folder(self._node.run_id))
            workers = start_worker_group(
                self._node, self._directory, os.environ, self._devices, self._outlet, self._inbox, temporary
            )
            self._open = opened.pop_all()
        self._runner = NodeRunner(
            self._node, self._directory, workers, self._outlet, given_up=lambda: self.is_lost
        )
        self._open.callback(self._runner.close)
        self._runner.begin(self._events.ends, self._events)

    def watch(self) -> dict[str, Any]:
        """Watch the ranks to their end, and return the final report."""
        with contextlib.suppress(OSError):
            self._sender.send(FrameKind.STARTED, {"pids": self._runner.record.pids})
        router = SignalRouter(self._events.ends, [self._runner], self._outlet)
        with self._open:
            while not self._runner.is_over:
                message = self._inbox.wait(self._runner.tick())
                if message is not None:
                    router.take(message)
                self._runner.poll()
                self._runner.step()
        last = self._events.last
        assert last is not None
        evidence = self._runner.afterwards() if last.evidence is None else last.evidence
        return {
            "evidence": dataclasses.asdict(evidence),
            "standings": [dataclasses.asdict(standing) for standing in last.standings],
            "left": last.left,
        }

    # Frames of the launcher; thread-safe.

    def signal(self, number: int) -> None:
        """Send the ranks a signal that the launcher got."""
        if number == signal.SIGSTOP:
            self._outlet.is_stopped = True
            self._runner.stop(by_key=False)
        elif number == signal.SIGCONT:
            self._outlet.is_stopped = False
            self._runner.resume()
        else:
            os.kill(os.getpid(), number)  # the inbox delivers it

    def look(self, reason: str) -> None:
        """Send the evidence of the ranks."""
        self._runner.look(reason)

    def release(self) -> None:
        """Let servers end: the ranks of all hosts have ended."""
        self._runner.release()

    def end(self) -> None:
        """End the ranks: one on another host has failed."""
        self._runner.end()

    def lose(self) -> None:
        """End the ranks: the launcher is gone."""
        self.is_lost = True
        self.signal(signal.SIGCONT)
        self.end()

    # Messages to the launcher.

    def send_pulse(self) -> None:
        """Send rank 0's steps and samples, and the collectives that ranks wait for.

        Raises:
            OSError: the reader is gone.
        """
        steps, samples = (self._pulse.steps, self._pulse.samples) if self._pulse is not None else (0, 0)
        standings = read_standings(self._directory, self._node.ranks, self._node.first_rank)
        waiting = waiting_now(standings, time.monotonic())
        self._sender.send(FrameKind.BEAT, {"steps": steps, "samples": samples, "waiting": waiting})

    def send_files(self, *, last: bool = False) -> None:
        """Send changes of this node's files since the last call.

        Args:
            last: whether the ranks have ended.

        Raises:
            OSError: the reader is gone.
        """
        with self._sending:
            for piece in self._mirror.changes(last=last):
                self._sender.send(FrameKind.PIECE, piece.to_bytes())

    def send_large_files(self, unread: Collection[bytes]) -> None:
        """Send checkpoints and published versions that the launcher lacks.

        Args:
            unread: kinds of frames that the launcher no longer reads.

        Raises:
            OSError: the launcher is gone.
        """
        if self._node.makes_large_files:
            with self._carrying:
                for piece in itertools.chain(self._checkpoints.pieces(), self._versions.pieces()):
                    if FrameKind.SAVED in unread:
                        return
                    self._sender.send(FrameKind.SAVED, piece.to_bytes())

    def remove_sent(self, unread: Collection[bytes]) -> None:
        """Remove large files of this node that the launcher has, too."""
        for path in self._directory.path.glob("rank-*.spans"):
            path.unlink(missing_ok=True)
        if self._node.is_far and FrameKind.SAVED not in unread:
            shutil.rmtree(carried_folder(self._directory.path), ignore_errors=True)
