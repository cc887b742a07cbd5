"""Runs at a path: a run directory, or a folder of run directories."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from ronde.report.document import document, encoded, title, wall_begun
from ronde.report.figures import loss_curve
from ronde.report.run import RunState, is_run, look_at_run
from ronde.report.step_arrays import read_course
from ronde.trace.run_directory import NODE_ID
from ronde.trace.step_file import steps_path

__all__ = ["ListOfRuns", "OneRun", "Runs"]

# A run that goes on is drawn again this often though nothing has happened: its time goes on.
_AT_LEAST_NS = 5_000_000_000


@final
class Runs:
    """Runs at a path, looked up anew at each question."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def is_one(self) -> bool:
        """Return whether the path is a run, and not a folder of runs."""
        return is_run(self.root)

    def paths(self) -> Mapping[str, Path]:
        """Return the directories of runs by their names."""
        if self.is_one():
            return {self.root.name: self.root}
        try:
            entries = [entry for entry in self.root.iterdir() if entry.is_dir()]
        except OSError:
            return {}
        return {entry.name: entry for entry in entries if not NODE_ID.fullmatch(entry.name) and is_run(entry)}


@final
class OneRun:
    """Contents of the page on one run, by its name."""

    def __init__(self, runs: Runs, name: str) -> None:
        self._runs, self._name = runs, name
        self._seen: object = None

    def renewed(self) -> bytes | None:
        """Return the run's document as JSON; None if nothing has changed.

        It is empty without the run.
        """
        path = self._runs.paths().get(self._name)
        if path is None:
            seen, self._seen = self._seen, ()
            return None if seen == () else b""
        run = look_at_run(path)
        now = run.now // _AT_LEAST_NS if run.life == "runs" else 0
        seen = (dataclasses.replace(run, now=now), _modified(path / "spans.json"))
        if seen == self._seen:
            return None
        content = encoded(document(run))
        self._seen = seen
        return content


@final
class ListOfRuns:
    """Contents of the page on all runs of a folder."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        # What is said of runs that are over, while their directories stay as they are.
        self._over: dict[str, tuple[object, dict[str, Any]]] = {}

    def renewed(self) -> bytes:
        """Return the list as JSON, the newest run first."""
        found: list[dict[str, Any]] = []
        over: dict[str, tuple[object, dict[str, Any]]] = {}
        for name, path in self._runs.paths().items():
            state = (_modified(path), _modified(path / "events.jsonl"))
            known = self._over.get(name)
            if known is None or known[0] != state:
                run = look_at_run(path)
                known = (state, _entry(name, run))
                if run.life == "runs":
                    known = (None, known[1])
            if known[0] is not None:
                over[name] = known
            found.append(known[1])
        self._over = over
        found.sort(key=lambda entry: (entry["life"] == "runs", entry["begun"]), reverse=True)
        return encoded(found)


def _entry(name: str, run: RunState) -> dict[str, Any]:
    loss: float | None = None
    if run.ranks:
        losses = loss_curve(read_course(steps_path(run.path, run.ranks[0].rank)).recent).mean
        loss = float(losses[-1]) if len(losses) else None
    return {
        "id": name,
        "title": title(run),
        "life": run.life,
        "plan": str(run.start.get("plan", "")),
        "ranks": run.ranks[0].steps.world_size if run.ranks else int(run.start.get("ranks", 0)),
        "steps": run.ranks[0].steps.steps if run.ranks else 0,
        "loss": loss,
        "seconds": run.seconds,
        "begun": wall_begun(run),
    }


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
