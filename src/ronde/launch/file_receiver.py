"""Receiver of large files at the launcher: checkpoints, and versions of a model."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from ronde.launch.agent_link import AgentLink
from ronde.launch.checkpoint_transfer import CheckpointReceiver
from ronde.launch.frames import FrameKind
from ronde.launch.job import LaunchJob
from ronde.launch.mirror import FileChunk
from ronde.launch.version_transfer import PUBLISHED, take_version

__all__ = ["FileReceiver"]


@final
class FileReceiver:
    """Receiver of one run's large files.

    Attributes:
        latest: time at which the last piece came, by the monotonic clock.
    """

    def __init__(self, job: LaunchJob) -> None:
        self.latest = -math.inf
        self._job = job
        self._checkpoints = CheckpointReceiver(Path(job.run.checkpoint), job.run.checkpoint_keep)

    def take(self, link: AgentLink, content: bytes) -> None:
        """Write a piece.

        It runs in the link's thread, so that pieces do not pile up.
        """
        self.latest = time.monotonic()
        try:
            piece = FileChunk.from_bytes(content)
            if piece.name.startswith(f"{PUBLISHED}/"):
                take_version(self._job.run_directory.path, piece)
            else:
                self._checkpoints.take(piece)
        except (OSError, ValueError) as error:
            link.send(FrameKind.CLOSED, FrameKind.SAVED.value)
            words = (
                f"no more checkpoints and published versions come from {link.name} ({error}); new ones stay "
                f"there, in its run directory {self._job.node_run_id(link.index)} [R125]"
            )
            link.tell(FrameKind.NOTICE, words.encode())

    def notice(self, names: Sequence[str]) -> str:
        """Describe hosts that do not see the folder, for the user."""
        do = "does" if len(names) == 1 else "do"
        return (
            f"{', '.join(names)} {do} not see {self._job.run.checkpoint} of this host: checkpoints are "
            "copied between the hosts [R124]"
        )
