"""Judge `--cluster this-host` by runs here, on a quiet machine: `python -m benchmarks.planner.this_host`.

It measures the host as `ronde plan search` does, runs a decoder under each plan, and prints the predicted
step and the bytes of the worst rank beside the measured ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report_options import add_options, say, show
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result
from ronde.errors import BenchError
from ronde.plan import expand
from ronde.planner.candidates import Candidates, point_of
from ronde.planner.cluster import Cluster
from ronde.planner.estimate import memory_of, seconds_of, setting_of
from ronde.planner.graph import CostGraph
from ronde.planner.this_host import host_of, measurements
from ronde.planner.traced import traced
from ronde.trace.run_directory import RunDirectory
from ronde.trace.summary import RankSummary, read_summary

__all__ = ["PLANS", "main"]

PLANS: Mapping[str, int] = {
    "ddp": 2,
    "zero1": 2,
    "zero2": 2,
    "zero3": 2,
    "tensor=2": 2,
    "pipeline=2,micro-batches=4": 2,
    "context=2": 2,
    "expert=2": 2,
    "data=2,tensor=2": 4,
    "data=2,pipeline=2,zero1,micro-batches=4": 4,
}
"""Ranks of each plan."""

_SCRIPT = Path(__file__).parent / "scripts" / "decoder.py"
_EXPERTS = ("--experts", "4")
_MIB = 2.0**20
_BOUNDS = {"seconds": 0.15, "memory": 0.05}


def main() -> int:
    """Print the report; 0 where all bounds are kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner.this_host", description=__doc__)
    add_options(parser)
    parser.add_argument("--plans", nargs="+", choices=PLANS, default=list(PLANS), help="all by default")
    parser.add_argument("--steps", type=int, default=38, help="36 at least")
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="where the host's figures are kept")
    asked = parser.parse_args()
    machine = Machine.here()
    graphs: dict[bool, CostGraph] = {}
    rows: list[Result] = []
    for plan in asked.plans:
        ranks, mixed = PLANS[plan], "expert" in plan
        if mixed not in graphs:
            graphs[mixed] = traced(str(_SCRIPT), _EXPERTS if mixed else (), real=mixed)
        row = judged(plan, _host(ranks, asked.measured), graphs[mixed], asked.steps)
        rows.append(row)
        say(f"{plan}: {', '.join(f'{name} {value:.4g}' for name, (value,) in row.samples.items())}")
    quantities = {name: Quantity() for name in ("predicted ms", "measured ms", "ratio", "predicted MiB")}
    report = Report(
        kind="planner-this-host",
        machine=machine,
        settings={"steps": str(asked.steps)},
        quantities={**quantities, "measured MiB": Quantity(), "ratio MiB": Quantity()},
        results=tuple(rows),
        notes=(
            "bytes: parameters, gradients, optimizer state and activations of the rank with most, after the "
            "second step",
        ),
    )
    show(report, asked)
    return int(any(row.labels["kept"] != "yes" for row in rows))


def judged(plan: str, cluster: Cluster, graph: CostGraph, steps: int) -> Result:
    """Run a plan, and compare."""
    summaries = _run(plan, cluster.devices, graph.experts > 1, steps)
    measured = max(_seconds(each, cluster.crowd) for each in summaries)
    kinds = ("parameters", "gradients", "optimizer", "activations")
    held = max(sum(each.memory.settled.get(kind, 0) for kind in kinds) for each in summaries if each.memory)
    one = Candidates.one(point_of(plan, cluster.devices))
    setting = setting_of(cluster, graph, expand(plan))
    seconds = float(seconds_of(setting, one).total[0])
    memory = float(memory_of(setting, one).total[0])
    numbers = {
        "predicted ms": 1e3 * seconds,
        "measured ms": 1e3 * measured,
        "ratio": seconds / measured,
        "predicted MiB": memory / _MIB,
        "measured MiB": held / _MIB,
        "ratio MiB": memory / held,
    }
    off = {"seconds": abs(seconds / measured - 1), "memory": abs(memory / held - 1)}
    missed = [name for name, bound in _BOUNDS.items() if off[name] > bound]
    return Result(
        labels={"plan": plan, "ranks": str(cluster.devices), "kept": ", ".join(missed) or "yes"},
        samples={name: (value,) for name, value in numbers.items()},
    )


def _seconds(summary: RankSummary, crowd: float) -> float:
    """Return the seconds of an undisturbed step.

    Time in which other programs had the core is left out, unless they are ranks of the run.
    """
    times = summary.step_times
    assert times is not None
    return times.whole - (times.halted if crowd == 1 else 0.0)


def _host(ranks: int, folder: Path | None) -> Cluster:
    kept = None if folder is None else folder / f"{ranks}.json"
    if kept is not None and kept.exists():
        return host_of(json.loads(kept.read_text()))
    found = measurements(ranks)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    return host_of(found)


def _run(plan: str, ranks: int, mixed: bool, steps: int) -> list[RankSummary]:
    with tempfile.TemporaryDirectory(prefix="ronde-planner-") as folder:
        command = [sys.executable, "-m", "ronde", "run", "--ranks", str(ranks), "--plan", plan, "--run-dir"]
        script = [str(_SCRIPT), "--steps", str(steps), *(_EXPERTS if mixed else ())]
        done: Any = subprocess.run([*command, folder, *script], stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:
            raise BenchError(f"{plan} failed: {done.stderr.decode(errors='replace')[-500:]}")
        place = RunDirectory(path=Path(folder), run_id="")
        found = [read_summary(place.summary(rank)) for rank in range(ranks)]
    return [each for each in found if each is not None]


if __name__ == "__main__":
    raise SystemExit(main())
