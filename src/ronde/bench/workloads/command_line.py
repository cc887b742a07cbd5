"""The arguments of the scripts."""

from __future__ import annotations

import argparse
import dataclasses

from catalogue import CATALOGUE
from workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """What a script was asked for.

    Attributes:
        name: of the workload.
        batch_size: of the global batch.
        warm_up, total: steps before the clock starts, and steps at all.
        trajectory: report the loss of every step; such a run is no measurement.
        device: where to train.
    """

    name: str
    workload: Workload
    batch_size: int
    warm_up: int
    total: int
    trajectory: bool
    device: str

    @property
    def samples(self) -> int:
        return self.batch_size * self.total


def arguments(*, ranks: int | None = None) -> Arguments:
    """Read the command line: of the plain script, or of a twin on `ranks` ranks (on the CPU)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=CATALOGUE)
    parser.add_argument("--steps", type=int, help="timed steps, instead of the workload's own number")
    parser.add_argument("--warm-up", type=int, help="steps before the clock starts, likewise")
    parser.add_argument("--scale", type=int, default=1, help="how many of the workload's batches make one")
    parser.add_argument("--trajectory", action="store_true", help="report the loss of every step")
    if ranks is None:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    words = parser.parse_args()
    workload = CATALOGUE[words.workload]
    warm_up = workload.warm_up if words.warm_up is None else words.warm_up
    batch_size = workload.batch_size * words.scale
    if batch_size % (ranks or 1):
        # Equal slices are what makes the mean of the ranks' means the batch's mean.
        parser.error(f"a batch of {batch_size} cannot be cut into {ranks} equal slices")
    return Arguments(
        name=words.workload,
        workload=workload,
        batch_size=batch_size,
        warm_up=warm_up,
        total=warm_up + (workload.steps if words.steps is None else words.steps),
        trajectory=words.trajectory,
        device="cpu" if ranks else words.device,
    )
