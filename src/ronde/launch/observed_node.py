"""Ranks of a host that another launcher starts and ends, observed from outside."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

from ronde.launch.failure import ENDING, RankDeath, RankExits, read_error
from ronde.launch.node import Node, NodeOfRun
from ronde.launch.node_events import NodeEnd, NodeEvents
from ronde.launch.process_watch import ProcessWatch
from ronde.launch.stall_detector import StallDetector, StallReading
from ronde.trace.evidence import Evidence
from ronde.trace.evidence_collector import EvidenceCollector, read_standings
from ronde.trace.heartbeat import look_at, vitals_path
from ronde.trace.run_directory import RunDirectory

__all__ = ["ObservedNode"]

# Seconds to wait after a failure for reports of other ranks. Launchers kill the rest of a job after a second.
_SETTLE_S = 0.4


@final
class ObservedNode(Node):
    """Ranks that another launcher started, found by files in the run directory.

    Args:
        timeout: seconds for which ranks may wait for one that does not come.
        main: process of the first of them, which runs already.
        since: seconds since 1970; older files belong to an earlier run in the same directory.
    """

    def __init__(
        self, share: NodeOfRun, directory: RunDirectory, timeout: float, main: int, since: float
    ) -> None:
        self.share = share
        self._directory, self._since = directory, since
        self._ranks = range(share.first_rank, share.first_rank + share.ranks)
        self._watch = ProcessWatch()
        self._seen: dict[int, int] = {}
        self._taken: set[int] = set()
        self._add(share.first_rank, main)
        self._stall = StallDetector(share.ranks, directory, timeout)
        self._gathering = EvidenceCollector(directory, self._processes)
        self._frozen: Evidence | None = None
        self._failed_at: float | None = None

    def begin(self, ends: RankExits, events: NodeEvents) -> None:
        self._ends, self._events = ends, events

    @property
    def record(self) -> None:
        """No-op, as other tools find the ranks by themselves."""

    def tick(self) -> float:
        return 0.1

    def poll(self) -> None:
        """Leave all to `step`: signals to the ranks come from their own launcher."""

    def step(self) -> None:
        self._find_processes()
        is_all = all(self._watch.has_ended(pid) for pid in self._seen.values())
        self._take_errors()
        self._take_deaths()
        if self._failed_at is None and self._ends.has_failed and self._ends.interrupted_by is None:
            self._failed_at = time.monotonic()
            if self._directory.path.exists():
                self._frozen = self._gathering.gather("failure", codes=self._ends.codes)
                self._events.froze(self._frozen)
        has_settled = self._failed_at is not None and time.monotonic() - self._failed_at > _SETTLE_S
        if has_settled or (is_all and self._failed_at is None):
            self.is_over = True
            self._events.concluded(self._conclude())
        elif self._failed_at is None:
            look = self._stall.look()
            if look is StallReading.WAITS:
                self._events.stalled(self._gathering.gather("stall"), is_over=False)

    def look(self, reason: str) -> None:
        self._events.looked(self._gathering.gather(reason, codes=self._ends.codes))

    # The launcher of the ranks ends them, and sends them signals.

    def end(self) -> None: ...

    def release(self) -> None: ...

    def signal(self, number: int, *, by_key: bool) -> None: ...

    def kill(self) -> None: ...

    def stop(self, *, by_key: bool) -> None: ...

    def resume(self) -> None: ...

    def reap(self, pid: int) -> None: ...

    def _add(self, rank: int, pid: int) -> None:
        self._seen[rank] = pid
        self._watch.add(pid)

    def _processes(self) -> Mapping[int, int]:
        return {rank: self._seen.get(rank, 0) for rank in self._ranks}

    def _find_processes(self) -> None:
        """Add ranks that have written their files since the last step."""
        for rank in self._ranks:
            path = vitals_path(self._directory.path, rank)
            if rank not in self._seen and self._is_new(path):
                vitals = look_at(path)
                if vitals is not None:
                    self._add(rank, vitals.pid)

    def _is_new(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime >= self._since
        except OSError:
            return False

    def _take_errors(self) -> None:
        for rank in self._ranks:
            if rank not in self._ends.errors:
                error = read_error(self._directory.error(rank))
                if error is not None and error.time >= self._since:
                    self._events.erred(error)

    def _take_deaths(self) -> None:
        """Record dead ranks; last the ones that a launcher ended."""
        gone = {
            rank: self._watch.code(pid)
            for rank, pid in self._seen.items()
            if self._watch.has_ended(pid) and rank not in self._taken
        }
        self._taken |= gone.keys()
        for rank, code in sorted(gone.items(), key=lambda each: _is_sent_by_launchers(each[1])):
            if code is None:
                self._take_untold_death(rank)
                continue
            if _is_sent_by_launchers(code) and not self._ends.has_failed:
                self._ends.interrupted_by = -code
            self._events.died(RankDeath(rank=rank, time=time.time(), code=code))

    def _take_untold_death(self, rank: int) -> None:
        """Record a rank's end without a known exit code.

        If all ranks disappear at once, they were ended on purpose.
        """
        has_ended = self._is_new(self._directory.summary(rank))
        is_alone = any(not self._watch.has_ended(pid) for pid in self._seen.values())
        if is_alone and not has_ended and rank not in self._ends.errors:
            self._events.aborted(
                "gone",
                f"rank {rank} has disappeared without an exit code: it was killed, or called os._exit; see "
                "the output of its launcher [R122]",
            )

    def _conclude(self) -> NodeEnd:
        frozen = self._frozen
        return NodeEnd(
            evidence=None if frozen is None else self._gathering.completed(frozen, self._ends.codes),
            standings=read_standings(self._directory, len(self._ranks), first=self._ranks.start),
            left=(),
        )


def _is_sent_by_launchers(code: int | None) -> bool:
    """Return whether a rank died of a signal by which launchers end jobs."""
    return code is not None and -code in ENDING
