"""All that a run directory tells of its run, while it goes on or afterwards; nothing of it is changed."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from ronde.errors import UsageError
from ronde.launch.gathering import read_standings
from ronde.trace.events import Event, read_events
from ronde.trace.launch_record import LaunchRecord, read_launch_record
from ronde.trace.run_directory import NODE_ID, RUN_ID, RunDirectory, default_root
from ronde.trace.step_file import StepsOfRank, read_steps
from ronde.trace.summary import RankSummary, read_summary
from ronde.trace.waiting import read_waiting, waiting_now

__all__ = ["Life", "RankRun", "Run", "find_run", "read_run"]

Life = Literal["runs", "ended", "failed", "gone"]
"""`gone`: it left no word."""

_STEPS_FILE = re.compile(r"rank-(\d+)\.steps")
_ERROR_FILE = re.compile(r"rank-(\d+)\.error\.json")
# Of a rank on another host only its last step tells whether it lives.
_QUIET_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankRun:
    """One rank.

    Attributes:
        steps: what it has written down.
        life: how it is.
        waits: it waits for others now, for this; "": it does not.
        summary: its account, where it has given one.
    """

    steps: StepsOfRank
    life: Life
    waits: str = ""
    summary: RankSummary | None = None

    @property
    def rank(self) -> int:
        return self.steps.rank


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run as its directory tells it.

    Attributes:
        path: of the directory.
        ranks: those that have written something down, in their order.
        events: in the order of time, failures of ranks among them.
        now: nanoseconds by the monotonic clock of this host, which is the launcher's while the run goes on.
    """

    path: Path
    ranks: tuple[RankRun, ...]
    events: tuple[Event, ...]
    now: int

    @property
    def life(self) -> Life:
        """That of the run: it fails with its first rank, and ends with the last."""
        lives = {each.life for each in self.ranks}
        for life in ("failed", "runs", "gone"):
            if life in lives:
                return life
        return "ended"

    @property
    def begun(self) -> int:
        """When the first rank began, in nanoseconds by the monotonic clock of the host of the launcher."""
        return min((each.steps.monotonic + each.steps.offset for each in self.ranks), default=0)

    @property
    def seconds(self) -> float:
        """How long it has taken: until now, or until the last step of a run that is over."""
        last = max(
            (each.steps.course[-1].ended + each.steps.offset for each in self.ranks if each.steps.course),
            default=self.begun,
        )
        return max(0.0, ((self.now if self.life == "runs" else last) - self.begun) / 1e9)

    @property
    def start(self) -> Mapping[str, Any]:
        """What is known of how it was started: `script`, `plan`, `seed`, `ranks`, `device`."""
        return next((event.more for event in reversed(self.events) if event.kind == "start"), {})

    def seconds_of(self, event: Event) -> float:
        """When an event was, in seconds since the beginning."""
        if not self.ranks:
            return 0.0
        first = min(self.ranks, key=lambda each: each.steps.wall).steps
        return event.time - first.wall / 1e9


def find_run(path: Path | None, environment: Mapping[str, str]) -> Path:
    """The directory that a user names; the newest one of the state directory without a name.

    Raises:
        UsageError: there is none.
    """
    if path is None:
        root = default_root(environment)
        runs = [
            entry
            for entry in root.glob("*")
            if RUN_ID.fullmatch(entry.name) and not NODE_ID.fullmatch(entry.name) and entry.is_dir()
        ]
        if not runs:
            raise UsageError(
                f"there is no run under {root}; name the directory that the first line of ronde run has"
            )
        return max(runs, key=lambda entry: (entry.stat().st_mtime, entry.name))
    if not path.is_dir():
        named = default_root(environment) / path
        if RUN_ID.fullmatch(str(path)) and named.is_dir():
            return named
        raise UsageError(
            f"{path} is not a directory; name the directory that the first line of ronde run has"
        )
    return path


def read_run(path: Path) -> Run:
    """All that the directory tells.

    Raises:
        UsageError: no rank has written anything down there.
    """
    record = read_launch_record(path / "launch.json")
    names = [match for entry in _entries(path) if (match := _STEPS_FILE.fullmatch(entry))]
    read = (read_steps(path / match[0]) for match in names)
    found = sorted(
        (_by_clocks_of_launcher(steps, record) for steps in read if steps is not None),
        key=lambda steps: steps.rank,
    )
    if not found:
        raise UsageError(
            f"no rank has written down steps in {path}; a script that distributes its work itself "
            "(--native) writes none, nor does one that has not begun"
        )
    failures = {event.rank: event for event in _failures(path)}
    by_agents = record is not None and record.by_agents
    waiting = read_waiting(path) if by_agents else _waiting(path, found)
    goes_on = by_agents and RunDirectory(path=path, run_id="").is_in_use()
    ranks = [
        RankRun(
            steps=steps,
            life=_life(path, steps, goes_on=goes_on if by_agents else None, failed=steps.rank in failures),
            waits=waiting.get(steps.rank, ""),
            summary=read_summary(path / f"rank-{steps.rank}.summary.json"),
        )
        for steps in found
    ]
    events = sorted([*read_events(path), *failures.values()], key=lambda event: event.time)
    return Run(path=path, ranks=tuple(ranks), events=tuple(events), now=time.monotonic_ns())


def _by_clocks_of_launcher(steps: StepsOfRank, record: LaunchRecord | None) -> StepsOfRank:
    """The same, with the times at which it began by the clocks of the host of the launcher."""
    node = (
        next((each for each in record.nodes if steps.rank in each.pids), None) if record is not None else None
    )
    if node is None:
        return steps
    return dataclasses.replace(
        steps, wall=steps.wall + round(node.wall * 1e9), offset=round(node.monotonic * 1e9)
    )


def _entries(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _failures(path: Path) -> Iterable[Event]:
    """What ranks left word of."""
    for name in _entries(path):
        match = _ERROR_FILE.fullmatch(name)
        if match is None:
            continue
        try:
            fields = json.loads((path / name).read_text(encoding="utf-8"))
            kind, message = str(fields["kind"]), str(fields["message"])
            words = f"exit code {fields['traceback']}" if kind == "exit" else f"{fields['type']}: {message}"
            yield Event(float(fields["time"]), "death", words, int(match[1]))
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _life(path: Path, steps: StepsOfRank, *, goes_on: bool | None, failed: bool) -> Life:
    """How a rank is.

    Args:
        goes_on: whether the launcher that hears of ranks on other hosts still does; None: ranks are here, or
            have no launcher of ours.
    """
    if failed:
        return "failed"
    if steps.ended:
        return "ended"
    if goes_on is not None:
        return "runs" if goes_on else "gone"
    if steps.host != platform.node():
        latest = max(steps.since, steps.monotonic) - steps.monotonic
        silent = time.time_ns() - steps.wall - latest
        return "runs" if silent < _QUIET_S * 1e9 else "gone"
    return "runs" if _maps(steps.process, path / f"rank-{steps.rank}.steps") else "gone"


def _maps(process: int, file: Path) -> bool:
    """Whether the process has the file in its memory: another one may have its number by now."""
    try:
        inode = str(file.stat().st_ino)
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.endswith(file.name) and line.split()[4] == inode for line in lines)


def _waiting(path: Path, ranks: list[StepsOfRank]) -> dict[int, str]:
    """For which collective each rank of this host waits now, by its number."""
    here = [each for each in ranks if each.host == platform.node()]
    if not here:
        return {}
    first = here[0].rank
    directory = RunDirectory(path=path, run_id="")
    return waiting_now(read_standings(directory, here[-1].rank - first + 1, first), time.monotonic())
