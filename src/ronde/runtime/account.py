"""Summary of a run on one rank, written when its script has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns

from ronde.launch.announce import say
from ronde.launch.rank_config import RankConfig
from ronde.launch.run_spec import DEFAULT_PLAN
from ronde.trace.counters import Tally
from ronde.trace.memory import Memory
from ronde.trace.progress import Pulse
from ronde.trace.run_directory import RunDirectory
from ronde.trace.summary import RankSummary, summary_lines

__all__ = ["give_account", "open_tally", "summarize"]


def open_tally(config: RankConfig) -> Tally:
    """Open this rank's tally of steps; a launcher that watches sees rank 0's progress."""
    return Tally(
        Pulse.open(_directory(config).pulse) if config.place.watched and config.place.rank == 0 else None
    )


def summarize(
    config: RankConfig,
    tally: Tally,
    *,
    algorithm: str = "",
    notes: Sequence[str] = (),
    memory: Memory | None = None,
) -> RankSummary:
    pace = tally.pace()
    steady = tally.steps > 1
    return RankSummary(
        rank=config.place.rank,
        world_size=config.place.world_size,
        seconds=max(1, perf_counter_ns() - tally.begun_ns) / 1e9,
        steps=tally.steps,
        samples=tally.samples,
        steps_per_second=pace.steps_per_second if steady else None,
        samples_per_second=pace.samples_per_second if steady else None,
        data=pace.data_share,
        communication=pace.communication_share,
        algorithm=algorithm,
        sharded=dict(tally.sharded),
        notes=tuple(notes),
        memory=memory,
        compute_plan=_plan_of_a_rank(config),
        step_times=tally.clock.times(),
        plan=config.run.plan,
    )


def give_account(config: RankConfig, summary: RankSummary) -> None:
    """Write the summary; without a watching launcher, rank 0 also prints it."""
    path = _directory(config).summary(config.place.rank)
    try:
        # os.open is not mediated: every rank writes its own.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(summary.to_json())
    except OSError as problem:
        print(f"ronde: cannot write {path}: {problem.strerror}", file=sys.stderr)
    if config.place.rank == 0 and not config.place.watched and not config.run.quiet:
        sys.stdout.flush()
        for line in summary_lines([summary]):
            say(line)


def _plan_of_a_rank(config: RankConfig) -> str:
    """Return the items of the plan that concern a single rank; "" for none."""
    if config.run.plan == DEFAULT_PLAN:
        return ""
    from ronde.plan import Plan

    plan = Plan.parse(config.run.plan)
    own = Plan(state=plan.state.on(1), compute=plan.compute)
    return str(own) if own != Plan() else ""


def _directory(config: RankConfig) -> RunDirectory:
    return RunDirectory(path=Path(config.place.run_dir), run_id="")
