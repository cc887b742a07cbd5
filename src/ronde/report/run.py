"""Reads a run directory, during the run or afterwards, without changing it."""

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
from ronde.trace.events import Event, read_events
from ronde.trace.evidence import evidence_path
from ronde.trace.evidence_collector import read_standings
from ronde.trace.explanation import Explanation, read_explanation
from ronde.trace.launch_record import LaunchRecord, read_launch_record
from ronde.trace.run_directory import NODE_ID, RUN_ID, RunDirectory, default_root
from ronde.trace.step_file import StepsOfRank, read_header
from ronde.trace.summary import RankSummary, read_summary
from ronde.trace.waiting import read_waiting, waiting_now

__all__ = [
    "Life",
    "RankRun",
    "RunState",
    "find_run",
    "is_run",
    "look_at_run",
    "named_run",
    "read_run",
    "root_of_runs",
]

Life = Literal["runs", "ended", "failed", "gone"]
"""State of a rank or run; `gone`: it died without a report."""

_STEPS_FILE = re.compile(r"rank-(\d+)\.steps")
_ERROR_FILE = re.compile(r"rank-(\d+)\.error\.json")
# Whether a rank on another host is alive is known only by its last step.
_QUIET_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankRun:
    """State of one rank.

    Attributes:
        steps: its step file without the records.
        life: whether it runs, has ended, failed or disappeared.
        waits: the collective that it waits for now; "" if it does not wait.
        summary: its summary, if written.
    """

    steps: StepsOfRank
    life: Life
    waits: str = ""
    summary: RankSummary | None = None

    @property
    def rank(self) -> int:
        return self.steps.rank


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """State of a run, read from its directory.

    Attributes:
        path: the directory.
        ranks: the ranks that have recorded steps, in order.
        events: events by time, failures of ranks among them.
        held: whether its launcher still holds the directory, though ranks are gone.
        cause: explanation of its failure or stall; None where it is not known.
        now: nanoseconds by the monotonic clock of this host, which is the launcher's while the run goes on.
    """

    path: Path
    ranks: tuple[RankRun, ...]
    events: tuple[Event, ...]
    now: int
    held: bool = False
    cause: Explanation | None = None

    @property
    def end(self) -> Event | None:
        """The launcher's word on its end; None before it."""
        decisive = (event for event in reversed(self.events) if event.kind in ("end", "start", "restart"))
        last = next(decisive, None)
        return last if last is not None and last.kind == "end" else None

    @property
    def life(self) -> Life:
        """State of the run: it fails with its first rank, ends with its last."""
        lives = {each.life for each in self.ranks}
        # 130 is the user's Ctrl-C.
        code = 0 if self.end is None else self.end.more.get("exit_code", 0)
        if code not in (0, 130) or (self.end is None and "failed" in lives):
            return "failed"
        if self.end is not None:
            return "ended"
        if "runs" in lives or self.held:
            return "runs"
        return "ended" if lives == {"ended"} else "gone"

    @property
    def begun(self) -> int:
        """The start of the first rank, in nanoseconds by the launcher host's monotonic clock."""
        return min((each.steps.monotonic + each.steps.offset for each in self.ranks), default=0)

    @property
    def seconds(self) -> float:
        """The duration of the run in seconds, until now or its last step."""
        if self.life == "runs":
            return max(0.0, (self.now - self.begun) / 1e9)
        last = max((each.steps.since + each.steps.offset for each in self.ranks), default=self.begun)
        end = 0.0 if self.end is None else self.seconds_of(self.end)
        return max(0.0, (last - self.begun) / 1e9, end)

    @property
    def start(self) -> Mapping[str, Any]:
        """The known settings of its start: `script`, `plan`, `seed`, `ranks`, `device`."""
        return next((event.more for event in reversed(self.events) if event.kind == "start"), {})

    def seconds_of(self, event: Event) -> float:
        """Return the time of an event, in seconds since the beginning."""
        if not self.ranks:
            return 0.0
        first = min(self.ranks, key=lambda each: each.steps.wall).steps
        return event.time - first.wall / 1e9


def find_run(path: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the run directory for a user's path, by default the newest.

    Raises:
        UsageError: no run was found.
    """
    if path is None:
        root = default_root(environment)
        runs = [entry for entry in root.glob("*") if named_run(entry.name) and entry.is_dir()]
        if not runs:
            raise UsageError(
                f"there is no run under {root}; name the directory that the first line of ronde run "
                "has [R600]"
            )
        return max(runs, key=lambda entry: (entry.stat().st_mtime, entry.name))
    path = _by_id(path, environment)
    if not path.is_dir():
        raise UsageError(
            f"{path} is not a directory; name the directory that the first line of ronde run has [R600]"
        )
    return path


def root_of_runs(path: Path | None, environment: Mapping[str, str]) -> Path:
    """Return a run directory or a folder of runs, which need not exist yet."""
    return (default_root(environment) if path is None else _by_id(path, environment)).absolute()


def _by_id(path: Path, environment: Mapping[str, str]) -> Path:
    """Return the directory of a run that is named by its id alone."""
    named = default_root(environment) / path
    return named if not path.is_dir() and RUN_ID.fullmatch(str(path)) and named.is_dir() else path


def named_run(name: str) -> bool:
    """Return whether a run's directory, not a host's, has this name."""
    return RUN_ID.fullmatch(name) is not None and NODE_ID.fullmatch(name) is None


def is_run(path: Path) -> bool:
    """Return whether a directory has the files of a run."""
    return any(
        name in ("launch.json", "events.jsonl") or _STEPS_FILE.fullmatch(name) for name in _entries(path)
    )


def read_run(path: Path) -> RunState:
    """Read a run directory.

    Raises:
        UsageError: no rank has recorded steps there.
    """
    run = look_at_run(path)
    if not run.ranks:
        raise UsageError(
            f"no rank has written down steps in {path}; a script that distributes its work itself "
            "(--native) writes none, nor does one that has not begun [R602]"
        )
    return run


def look_at_run(path: Path) -> RunState:
    """Read a run directory; without ranks where none has begun."""
    record = read_launch_record(path / "launch.json")
    names = [match for entry in _entries(path) if (match := _STEPS_FILE.fullmatch(entry))]
    read = (read_header(path / match[0]) for match in names)
    found = sorted(
        (_by_clocks_of_launcher(steps, record) for steps in read if steps is not None),
        key=lambda steps: steps.rank,
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
    run = RunState(path=path, ranks=tuple(ranks), events=tuple(events), now=time.monotonic_ns())
    # The launcher explains the end of a run after its ranks are gone.
    held = run.life == "gone" and (path / "lock").exists() and RunDirectory(path=path, run_id="").is_in_use()
    run = dataclasses.replace(run, held=held)
    return dataclasses.replace(run, cause=_cause(run))


def _cause(run: RunState) -> Explanation | None:
    """Return the explanation of a failure, or of a stall that still lasts."""
    if run.life == "ended":
        return None
    found = read_explanation(run.path)
    if found is None or run.life != "runs":
        return found
    explained = evidence_path(run.path, "explanation").stat().st_mtime
    since = max((each.steps.wall + each.steps.since - each.steps.monotonic for each in run.ranks), default=0)
    return found if since / 1e9 <= explained else None


def _by_clocks_of_launcher(steps: StepsOfRank, record: LaunchRecord | None) -> StepsOfRank:
    """Return the steps with start times by the launcher host's clocks."""
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
    """Yield the failures that ranks have written."""
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
    """Return the state of a rank.

    Args:
        goes_on: whether the launcher that watches ranks on other hosts still runs; None: ranks are here, or
            have another launcher.
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
    """Return whether the process has mapped the file: its number may be reused."""
    try:
        inode = str(file.stat().st_ino)
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.endswith(file.name) and line.split()[4] == inode for line in lines)


def _waiting(path: Path, ranks: list[StepsOfRank]) -> dict[int, str]:
    """Return the collective that each waiting rank of this host waits for, by rank."""
    here = [each for each in ranks if each.host == platform.node()]
    if not here:
        return {}
    first = here[0].rank
    directory = RunDirectory(path=path, run_id="")
    return waiting_now(read_standings(directory, here[-1].rank - first + 1, first), time.monotonic())
