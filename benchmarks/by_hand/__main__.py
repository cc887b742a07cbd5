"""Measure meshes as `ronde bench parallel`, beside scripts by hand: `python -m benchmarks.by_hand`.

The scripts cut the GPT of `ronde bench`: by parallelize_module, by FSDP2 and parallelize_module on four
ranks, and by context parallelism.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report_options import add_options, say, show
from ronde.bench.contenders import FOLDER, Contender, with_peer
from ronde.bench.meshes import arguments_of, in_micro_batches, measure, meshes
from ronde.bench.peers import Peer
from ronde.plan import expand

__all__ = ["BY_HAND", "by_hand", "main"]

WORKLOAD = "gpt"


def _peer(name: str, title: str) -> Peer:
    return Peer(name=name, title=title, distribution="torch", module="torch")


BY_HAND = {
    "tensor by hand": _peer("tensor", "parallelize_module"),
    "zero3 and tensor by hand": _peer("tensor_fsdp2", "FSDP2 x parallelize_module"),
    "context by hand": _peer("context", "context parallelism by hand"),
}
"""Scripts of this folder, by their names in the report."""


def by_hand(name: str, arguments: Sequence[str], *, ranks: int, environment: Mapping[str, str]) -> Contender:
    """Return a script by hand on ranks of one thread."""
    folder = Path(__file__).parent
    path = os.pathsep.join(filter(None, (str(folder), str(FOLDER), environment.get("PYTHONPATH"))))
    variables = {**environment, "PYTHONPATH": path}
    made = with_peer(
        BY_HAND[name], WORKLOAD, arguments, ranks=ranks, threads=1, environment=variables, folder=folder
    )
    return dataclasses.replace(made, name=name)


def twins(plans: Sequence[str], ranks: int) -> list[str]:
    """Return the scripts that cut as one of the plans does."""
    described = [expand(plan) for plan in plans]
    alone, twice, context = BY_HAND
    found = [alone]
    if any(each.state.placement == "zero3" and each.mesh.tensor == 2 for each in described) and ranks == 4:
        found.append(twice)
    if any(each.mesh.context == ranks for each in described):
        found.append(context)
    return found


def main() -> int:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_hand", description=__doc__)
    parser.add_argument("--plans", default="", help="plans, separated by semicolons; all meshes by default")
    parser.add_argument("--ranks", type=int, default=4, help="ranks of every plan, with one thread each")
    parser.add_argument("--scale", type=int, default=1, help="the number of the workload's batches in one")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each contender")
    parser.add_argument("--steps", type=int, help="timed steps of a run")
    add_options(parser)
    asked = parser.parse_args()
    numbers = [4, 8]
    plans = in_micro_batches(asked.plans.split(";"), numbers) if asked.plans else meshes(asked.ranks, numbers)
    arguments = arguments_of(asked.scale, asked.steps)
    beside = [
        by_hand(name, arguments, ranks=asked.ranks, environment=os.environ)
        for name in twins(plans, asked.ranks)
    ]
    report = measure(
        WORKLOAD,
        plans,
        ranks=asked.ranks,
        rounds=asked.pairs,
        scale=asked.scale,
        steps=asked.steps,
        environment=os.environ,
        progress=say,
        beside=beside,
    )
    show(report, asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
