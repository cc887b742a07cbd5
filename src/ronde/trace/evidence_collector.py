"""Collection of evidence about this host's ranks, from files and Linux.

Ranks themselves are only asked for their stacks. Linux's data of a rank are read twice, a moment apart, to
know whether it computes; meanwhile it writes its stacks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.cluster.cores import available_cores
from ronde.cluster.host_memory import kernel_lines, oom_kills
from ronde.trace import connections
from ronde.trace.evidence import Collective, Evidence, HostFacts, ProcessFacts, RankEvidence
from ronde.trace.heartbeat import STACK_SIGNAL, Heartbeat, look_at, vitals_path
from ronde.trace.lockstep_board import BoardPosition, BoardState, LockstepBoard, board_path
from ronde.trace.process_facts import catches, cpu_seconds, descendants, process
from ronde.trace.run_directory import RunDirectory
from ronde.trace.run_hosts import read_hosts

__all__ = ["GROUPS", "EvidenceCollector", "ask_for_stacks", "main_thread_first", "read_standings"]

GROUPS = ("boundary", "reducer")
LOG_LINES = 12
COLLECTIVES = 64
LOOK_S = 0.4
# Less time after a failure: the end must be reported soon, and the first failure is known.
SHORT_LOOK_S = 0.12
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+).*$", re.MULTILINE)


class EvidenceCollector:
    """Evidence about the ranks of one node; one thread gathers at a time.

    Args:
        pids: function that returns the pid of each rank of this host, by its number; 0 for an unknown or
            ended one.
    """

    def __init__(self, directory: RunDirectory, pids: Callable[[], Mapping[int, int]]) -> None:
        self._directory = directory
        self._pids = pids
        self._began = time.monotonic()
        self._killed_before = oom_kills()
        self._one_at_a_time = threading.Lock()

    def gather(self, reason: str, *, codes: Mapping[int, int] | None = None) -> Evidence:
        """Collect all evidence now.

        Args:
            reason: stall, failure or asked.
            codes: exit codes of ranks that have ended, as `subprocess` has them.
        """
        codes = codes or {}
        with self._one_at_a_time:
            pids = self._pids()
            alive = {rank: pid for rank, pid in pids.items() if pid and rank not in codes}
            return self._gathered(reason, codes, pids, alive)

    def afterwards(self, codes: Mapping[int, int]) -> Evidence:
        """Collect the evidence of a run that has ended, unless it was written before."""
        return self._gathered("end", codes, self._pids(), {})

    def _gathered(
        self, reason: str, codes: Mapping[int, int], pids: Mapping[int, int], alive: Mapping[int, int]
    ) -> Evidence:
        started = descendants(set(alive.values()))
        children = {rank: started[pid] for rank, pid in alive.items()}
        looked = [*alive.values(), *(pid for each in children.values() for pid in each)]
        before, began = {pid: cpu_seconds(pid) for pid in looked}, time.monotonic()
        sockets = connections.look(alive.values())
        length = 0.0 if not alive else SHORT_LOOK_S if reason == "failure" else LOOK_S
        stacks = ask_for_stacks(self._directory, alive, until=began + length)
        time.sleep(max(0.0, began + length - time.monotonic()))
        passed = max(time.monotonic() - began, 1e-3)

        def seen(pid: int) -> ProcessFacts:
            main, every = cpu_seconds(pid)
            return dataclasses.replace(
                process(pid),
                cpu=round((main - before[pid][0]) / passed, 2),
                busy=round((every - before[pid][1]) / passed, 2),
            )

        first = min(pids, default=0)
        standings = {each.rank: each for each in read_standings(self._directory, len(pids), first)}
        rings = {rank + first: each for rank, each in _rings(self._directory, len(pids)).items()}
        now = time.monotonic()
        ranks = [
            self._rank(
                rank,
                seen(pid) if rank in alive else ProcessFacts(pid=pid),
                code=codes.get(rank),
                stack=stacks.get(rank, ""),
                standing=standings.get(rank),
                collectives=rings.get(rank, ()),
                children=tuple(seen(child) for child in children.get(rank, ())),
                now=now,
            )
            for rank, pid in sorted(pids.items())
        ]
        return Evidence(
            run_directory=str(self._directory.path),
            reason=reason,
            time=time.time(),
            ranks=tuple(ranks),
            hosts=(self._connected(sockets, connections.look(alive.values()), passed),),
            unobserved=tuple(
                host for host in read_hosts(self._directory.path) if pids.keys().isdisjoint(host.ranks)
            ),
        )

    def completed(self, evidence: Evidence, codes: Mapping[int, int]) -> Evidence:
        """Add facts that appear after the end: exit codes, errors, crashes, summaries, logs."""
        ranks: list[RankEvidence] = []
        for rank in evidence.ranks:
            ranks.append(
                dataclasses.replace(
                    rank,
                    code=codes.get(rank.rank, rank.code),
                    error=_json(self._directory.error(rank.rank)),
                    crash=_text(self._directory.crash(rank.rank)),
                    summary=_json(self._directory.summary(rank.rank)),
                    log=_tail(self._directory.log(rank.rank)),
                )
            )
        was = evidence.hosts[0]
        host = dataclasses.replace(self._host(time.monotonic()), connections=was.connections, sent=was.sent)
        return dataclasses.replace(evidence, ranks=tuple(ranks), hosts=(host,))

    def _connected(
        self, before: connections.TrafficSample, after: connections.TrafficSample, passed: float
    ) -> HostFacts:
        """Describe the host now, with its ranks' traffic between two looks."""
        return dataclasses.replace(
            self._host(time.monotonic()),
            connections=tuple(connections.compared(before, after)),
            sent=round(max(0, after.sent - before.sent) / passed),
        )

    def _rank(
        self,
        rank: int,
        seen: ProcessFacts,
        *,
        code: int | None,
        stack: str,
        standing: BoardPosition | None,
        collectives: tuple[Collective, ...],
        children: tuple[ProcessFacts, ...],
        now: float,
    ) -> RankEvidence:
        directory = self._directory
        vitals = look_at(vitals_path(directory.path, rank))
        if vitals is not None and seen.pid and vitals.pid != seen.pid:
            vitals = None  # file of another process, from an earlier attempt
        entry = None if standing is None else standing.entry
        return RankEvidence(
            rank=rank,
            process=seen,
            code=code,
            standing="" if standing is None else standing.state.name.lower(),
            stood=0.0 if standing is None else round(max(0.0, now - standing.since), 2),
            what="" if entry is None else entry.what,
            where="" if entry is None else entry.where,
            step=-1 if vitals is None else vitals.step,
            beat=None if vitals is None or not vitals.beat else round(max(0.0, now - vitals.beat), 2),
            stack=main_thread_first(stack, vitals),
            crash=_text(directory.crash(rank)),
            error=_json(directory.error(rank)),
            not_finite=0 if vitals is None else vitals.not_finite,
            collectives=tuple(_aged(each, now) for each in collectives),
            children=children,
            threads=0 if vitals is None else vitals.threads,
            log=_tail(directory.log(rank)),
            summary=_json(directory.summary(rank)),
        )

    def _host(self, now: float) -> HostFacts:
        return HostFacts(
            cores=available_cores(),
            memory=_available_memory(),
            oom_kills=oom_kills() - self._killed_before,
            kernel=kernel_lines(now - self._began),
            disk=_free(self._directory.path),
            shared=_free(Path("/dev/shm")),
        )


def read_standings(directory: RunDirectory, ranks: int, first: int = 0) -> list[BoardPosition]:
    """Read the standing of every rank, over all its groups; empty without boards.

    Args:
        first: number of the first rank; boards are of one host, and count its ranks from 0.
    """
    boards: list[Sequence[BoardPosition]] = []
    for group in GROUPS:
        with contextlib.suppress(OSError, ValueError):
            board = LockstepBoard(board_path(directory.path, group), None, ranks)
            boards.append(board.standings())
            board.close()
    # A rank that waits in one group counts as running in the others; it has ended once it has ended in any.
    order = (BoardState.ABSENT, BoardState.RUNNING, BoardState.ENDED, BoardState.WAITING)
    latest = (
        max(of_rank, key=lambda standing: (order.index(standing.state), standing.since))
        for of_rank in zip(*boards, strict=True)
    )
    return [dataclasses.replace(each, rank=each.rank + first) for each in latest]


def ask_for_stacks(directory: RunDirectory, pids: Mapping[int, int], *, until: float) -> dict[int, str]:
    """Request the stacks of all ranks by signal, and read them.

    Ranks that are stopped, or that use the signal themselves, are left out.
    """
    asked: dict[int, Path] = {}
    for rank, pid in pids.items():
        path, vitals = directory.stack(rank), look_at(vitals_path(directory.path, rank))
        if process(pid).state in ("", "Z", "X", "T", "t") or (vitals is not None and not vitals.answers):
            continue
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
            if catches(pid, (STACK_SIGNAL,)):
                os.kill(pid, STACK_SIGNAL)
                asked[rank] = path
    found: dict[int, str] = {}
    sizes: dict[int, int] = {}
    while len(found) < len(asked) and time.monotonic() < until:
        time.sleep(0.02)
        for rank, path in asked.items():
            text = _text(path)
            if text and sizes.get(rank) == len(text):  # it is written completely
                found[rank] = text
            sizes[rank] = len(text)
    for rank, path in asked.items():
        found.setdefault(rank, _text(path))
    return {rank: text for rank, text in found.items() if text}


def main_thread_first(stack: str, vitals: Heartbeat | None) -> str:
    """Move the main thread's stack to the front.

    Without vitals the main thread is assumed to be the last one.
    """
    heads = list(_THREAD.finditer(stack))
    if len(heads) < 2:
        return stack
    ends = [*(head.start() for head in heads[1:]), len(stack)]
    parts = [(int(head[1], 16), stack[head.start() : end].rstrip() + "\n") for head, end in zip(heads, ends)]
    wanted = vitals.thread if vitals is not None else parts[-1][0]
    return "\n".join(text for _, text in sorted(parts, key=lambda part: part[0] != wanted))


def _rings(directory: RunDirectory, ranks: int) -> dict[int, tuple[Collective, ...]]:
    found: dict[int, list[Collective]] = {}
    for group in GROUPS:
        with contextlib.suppress(OSError, ValueError):
            board = LockstepBoard(board_path(directory.path, group), None, ranks)
            for rank in range(ranks):
                found.setdefault(rank, []).extend(
                    Collective(
                        group=group,
                        number=entry.number,
                        what=entry.what,
                        where=entry.where,
                        entered=entry.time,
                        left=entry.left or None,
                    )
                    for entry in board.entries(rank)
                )
            board.close()
    return {
        rank: tuple(sorted(each, key=lambda entry: entry.entered)[-COLLECTIVES:])
        for rank, each in found.items()
    }


def _aged(entry: Collective, now: float) -> Collective:
    left = None if entry.left is None else round(now - entry.left, 3)
    return dataclasses.replace(entry, entered=round(now - entry.entered, 3), left=left)


def _json(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _tail(log: Path) -> tuple[str, ...]:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - 8192))
            return tuple(stream.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:])
    except OSError:
        return ()


def _free(path: Path) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return -1


def _available_memory() -> int:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return -1
