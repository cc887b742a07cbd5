"""The rows of the table: what beside the plan a user asks of a run, and when it has worked.

A new tool is one line of `TOGETHER`, if it only adds an option to a run or reads its directory, or a function
of `APART`.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ronde.report.server.runs import OneRun, Runs
from ronde.server.serving.manifest import path_of
from ronde.server.serving.published import Published
from ronde.trace.checkpoint_manifest import latest_manifest
from tools.plans import RANKS
from tools.scripts import LAST_STEP
from tools.trial import Died, Ran, Trial, copied, ranks_of

__all__ = ["APART", "TOGETHER", "TOOLS", "Together"]

_SAVES = ("--checkpoint", "saved", "--every", "5")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """A tool that stands beside others in one run.

    Attributes:
        options: of `ronde run`.
        script: how the script is named.
        check: of the folder in which the run has ended; raises `Died`.
    """

    options: tuple[str, ...] = ()
    script: str = "train.py"
    check: Callable[[Trial, Path, Ran], None]


def _quiet(trial: Trial, place: Path, ran: Ran) -> None:
    if ran.err:
        raise Died(f"says {ran.err}")


def _module(trial: Trial, place: Path, ran: Ran) -> None:
    """What is asked of every run is all there is to ask."""


def _saved(trial: Trial, place: Path, ran: Ran) -> None:
    manifest = latest_manifest(place / "saved")
    if manifest is None or manifest.step < (5 if trial.apart else LAST_STEP - 5):
        raise Died(f"the newest checkpoint is {manifest}")


def _published(trial: Trial, place: Path, ran: Ran) -> None:
    source = Published(place / "run" / "published")
    versions = source.versions()
    if len(versions) < 2:
        raise Died(f"publishes the versions {versions}")
    last = source.load(versions[-1])
    if last.step != LAST_STEP:
        raise Died(f"the last version, {path_of(Path(), versions[-1])}, is of step {last.step}")
    if last.dense.keys() != trial.weights.keys():
        raise Died(f"publishes {list(last.dense)}, not {list(trial.weights)}")
    for name, value in last.dense.items() if trial.column.plan.exact else ():
        tolerance = trial.column.tolerance
        if not torch.allclose(value.float(), trial.weights[name], rtol=tolerance, atol=tolerance):
            raise Died(f"publishes another {name} than plain Python ends with")


def _traced(trial: Trial, place: Path, ran: Ran) -> None:
    events = json.loads((place / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    if {event["pid"] for event in spans} != set(range(RANKS)):
        raise Died(f"{len(spans)} spans of ranks {sorted({event['pid'] for event in spans})}")
    if any(not math.isfinite(event["ts"]) or event["dur"] < 0 for event in spans):
        raise Died("a span has no time")


def _tops(trial: Trial, place: Path, ran: Ran) -> None:
    _shows_steps(trial.tool(place, "top", "run", "--once"))


def _reports(trial: Trial, place: Path, ran: Ran) -> None:
    trial.tool(place, "report", "run")
    _shows_steps((place / "run" / "report.html").read_text())


def _shows_live(trial: Trial, place: Path, ran: Ran) -> None:
    """The state of `ronde ui`'s page."""
    state = json.loads(OneRun(Runs(place), "run").renewed() or b"{}")
    if state.get("life") != "ended":
        raise Died(f"the page says that the run {state.get('life')}")
    _shows_steps(json.dumps(state))


def _counted(trial: Trial, place: Path, ran: Ran) -> None:
    text = (place / "run" / "metrics.prom").read_text()
    steps = dict(re.findall(r'^ronde_run_steps_total{rank="(\d+)"} ([\d.]+)$', text, re.MULTILINE))
    if {rank: float(count) for rank, count in steps.items()} != {
        str(rank): LAST_STEP for rank in range(RANKS)
    }:
        raise Died(f"counts the steps {steps}")


def _exported(trial: Trial, place: Path, ran: Ran) -> None:
    trial.tool(place, "report", "run", "--csv", "run.csv")
    with open(place / "run.csv", newline="") as file:
        steps = Counter(int(row["rank"]) for row in csv.DictReader(file) for _ in range(int(row["steps"])))
    if steps != dict.fromkeys(range(RANKS), LAST_STEP):
        raise Died(f"the table has the steps {steps}")


def _doctors(trial: Trial, place: Path, ran: Ran) -> None:
    """Exit code 1 says that there is something to mend, such as a rank for which others wait."""
    said = trial.tool(place, "doctor", "run", codes=(0, 1))
    if not said.startswith("cause: "):
        raise Died(f"ronde doctor says {said}")


def _shows_steps(text: str) -> None:
    if str(LAST_STEP) not in text:
        raise Died(f"shows no step {LAST_STEP}")


TOGETHER: Mapping[str, Together] = {
    "--checkpoint": Together(options=_SAVES, check=_saved),
    "--publish": Together(options=("--publish", "0.001"), check=_published),
    "--trace": Together(options=("--trace", "trace.json"), check=_traced),
    "--quiet": Together(options=("--quiet",), check=_quiet),
    "-m": Together(options=("-m",), script="train", check=_module),
    "top": Together(check=_tops),
    "report": Together(check=_reports),
    "report --csv": Together(check=_exported),
    "ui": Together(check=_shows_live),
    "--metrics": Together(options=("--metrics", "0"), check=_counted),
    "doctor": Together(check=_doctors),
}


def _resume(trial: Trial) -> None:
    _resumed(trial, saved_under=trial.column.name)


def _resume_another(trial: Trial) -> None:
    """A checkpoint of another plan."""
    _resumed(trial, saved_under="zero2" if trial.column.name == "ddp" else "ddp")


def _resumed(trial: Trial, *, saved_under: str) -> None:
    first, second = trial.place(), trial.place()
    trial.run(first, *_SAVES, plan=saved_under)
    copied(first / "saved", second)
    manifest = latest_manifest(second / "saved")
    assert manifest is not None
    ran = trial.run(second, *_SAVES, "--resume")
    trial.require_right(ran, after=manifest.step)


def _soon(trial: Trial) -> tuple[str, ...]:
    """Options by which a run has saved when it holds: with a staleness it does so some steps later."""
    return (*_SAVES[:-1], "2") if trial.column.plan.update.staleness else _SAVES


def _restarts(trial: Trial) -> None:
    """A rank is killed."""
    place = trial.place(holds=True)
    running = trial.start(place, *_soon(trial), "--restarts", "1")

    def kill_a_rank() -> None:
        ranks_of(running.pid)[-1].kill()

    ran = trial.finish(running, place, kill_a_rank)
    trial.require_right(ran)
    if "restart 1 of 1" not in ran.err:
        raise Died("is not started again")


def _several_hosts(trial: Trial) -> None:
    place = trial.place()
    trial.require_right(trial.run(place, *_hosts(place)))


def _elastic(trial: Trial) -> None:
    """A host is lost, and is there again when it is asked for."""
    place = trial.place(holds=True)
    running = trial.start(place, *_hosts(place), *_soon(trial), "--restarts", "1", "--min-ranks", "1")

    def lose_a_host() -> None:
        agents = [process for process in ranks_of(running.pid) if process.children()]
        agents[-1].kill()

    ran = trial.finish(running, place, lose_a_host)
    trial.require_right(ran)
    if "going on with 2 ranks" not in ran.err:
        raise Died("does not go on with the hosts that answer")


def _hosts(place: Path) -> tuple[str, ...]:
    """Two hosts, both of them this one, behind a command that takes the place of ssh."""
    command = place / "reach"
    command.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    command.chmod(0o755)
    return "-H", "one:1,two:1", "--ssh-command", str(command)


def _verify(trial: Trial) -> None:
    proof = trial.verify()
    if not proof.holds:
        broken = [verdict for verdict in proof.verdicts if verdict.status.name == "broken"]
        raise Died(f"breaks the law: {proof.failure or broken[0]}")


APART: Mapping[str, Callable[[Trial], None]] = {
    "--resume": _resume,
    "--resume, of another plan": _resume_another,
    "--restarts": _restarts,
    "several hosts": _several_hosts,
    "elastic": _elastic,
    "verify": _verify,
}

TOOLS = (*TOGETHER, *APART)
